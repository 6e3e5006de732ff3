"""The simulated arm: its geometry, kinematics, camera, tasks, expert and servo plant. No ROS here."""
