"""The messages of a world: its camera out, commanded trajectories in."""

from __future__ import annotations

import math
from collections.abc import Callable

from builtin_interfaces.msg import Time
from sensor_msgs.msg import CameraInfo
from trajectory_msgs.msg import JointTrajectory

from physis_ros.node.time_messages import duration_to_seconds, time_to_ns
from physis_ros.robot.trajectory_controller import Trajectory, TrajectoryPoint
from physis_ros.world.codec import WorldContract

LARGEST = 1e6
"""Of a commanded position, velocity or acceleration [rad, rad/s, rad/s^2]. What is larger would
overflow on its way through interpolation and float32."""


def camera_info(contract: WorldContract, *, stamp: Time, frame_id: str) -> CameraInfo:
    """A pinhole without distortion; all zero where nothing is known of the camera."""
    height, width = contract.frame_size
    focal, cx, cy = contract.focal_pixel, 0.5 * width, 0.5 * height
    message = CameraInfo(height=height, width=width, distortion_model="plumb_bob", d=[0.0] * 5)
    message.header.stamp = stamp
    message.header.frame_id = frame_id
    if focal == 0.0:
        return message
    message.k = [focal, 0.0, cx, 0.0, focal, cy, 0.0, 0.0, 1.0]
    message.r = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    message.p = [focal, 0.0, cx, 0.0, 0.0, focal, cy, 0.0, 0.0, 0.0, 1.0, 0.0]
    return message


def commanded_trajectory(message: JointTrajectory, seconds: Callable[[int], float]) -> Trajectory:
    """As it came; nothing is checked here. `seconds` turns ROS nanoseconds into the controller's
    time; a stamp of 0 starts when it is first played."""
    stamp_ns = time_to_ns(message.header.stamp)
    return Trajectory(
        joint_names=tuple(message.joint_names),
        start_s=None if stamp_ns == 0 else seconds(stamp_ns),
        points=tuple(
            TrajectoryPoint(
                time_from_start_s=duration_to_seconds(p.time_from_start),
                positions=tuple(p.positions),
                velocities=tuple(p.velocities),
                accelerations=tuple(p.accelerations),
                effort=tuple(p.effort),
            )
            for p in message.points
        ),
    )


def wrong_number(trajectory: Trajectory) -> str | None:
    """The first number that no joint can follow: not finite, or above `LARGEST`; None: all fit.

    The trajectory controller itself, as the real one, plays such numbers.
    """
    for index, point in enumerate(trajectory.points):
        for field in ("positions", "velocities", "accelerations"):
            for place, value in enumerate(getattr(point, field)):
                if math.isfinite(value) and abs(value) <= LARGEST:
                    continue
                names = trajectory.joint_names
                joint = names[place] if place < len(names) else place
                return f"point {index}: {field}[{joint}]: {value:g}, must be within +-{LARGEST:g}"
    return None
