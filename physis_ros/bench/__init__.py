"""Benchmarks of the ROS side, one file each: `add_arguments(parser)` and `run(args, console) -> result`."""
