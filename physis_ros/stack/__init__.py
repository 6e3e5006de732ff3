"""What runs together: read from YAML, resolved into processes, supervised. No ROS is imported."""
