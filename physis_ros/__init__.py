"""The ROS 2 side: observations in, action chunks and trajectories out, safety beside it."""
