"""The engine of streaming world models: staged, planned, simulated; no ROS anywhere."""
