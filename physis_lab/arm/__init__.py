"""The simulated arm: its geometry, kinematics, camera, tasks, expert, plant. No ROS here."""
