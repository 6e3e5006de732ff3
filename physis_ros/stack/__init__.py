"""A stack of nodes: read from YAML, resolved into processes, supervised. Imports no ROS."""
