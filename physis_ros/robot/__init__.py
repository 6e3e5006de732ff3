"""A robot as files and motion: joint limits, URDF, trajectories, and how its controller plays."""
