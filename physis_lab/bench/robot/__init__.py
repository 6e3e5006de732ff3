"""Benchmarks of the ROS side, one file each: `add_arguments(parser)`, `run(args, console)`."""
