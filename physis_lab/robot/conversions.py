"""Conversions between the simulated robot's data and messages. Stamps in ns of ROS time."""

from __future__ import annotations

import array
import math
from typing import Any

import mujoco
import numpy as np
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import CameraInfo, Image
from trajectory_msgs.msg import JointTrajectory

from physis_core.types import Array
from physis_lab.arm.scene import CAMERA_NAME
from physis_ros.node.time_messages import time_to_ns
from physis_ros.robot.trajectory_controller import Trajectory, TrajectoryPoint


def trajectory_of(message: JointTrajectory, start_s: float | None) -> Trajectory:
    """The message as a trajectory that starts at `start_s` of the controller's clock (None:
    now)."""
    return Trajectory(
        joint_names=tuple(message.joint_names),
        start_s=start_s,
        points=tuple(
            TrajectoryPoint(
                time_from_start_s=time_to_ns(p.time_from_start) * 1e-9,
                positions=tuple(p.positions),
                velocities=tuple(p.velocities),
                accelerations=tuple(p.accelerations),
                effort=tuple(p.effort),
            )
            for p in message.points
        ),
    )


def put_stamp(header: Any, stamp_ns: int) -> None:
    header.stamp.sec, header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)


def pose_message(stamp_ns: int, position: Array) -> PoseStamped:
    message = PoseStamped()
    message.header.frame_id = "base_link"
    put_stamp(message.header, stamp_ns)
    point = message.pose.position
    point.x, point.y, point.z = (float(value) for value in position)
    message.pose.orientation.w = 1.0
    return message


def image_message(pixels: Array, stamp_ns: int) -> Image:
    height, width = pixels.shape[:2]
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.header.frame_id = f"{CAMERA_NAME}_optical"
    put_stamp(message.header, stamp_ns)
    # rclpy takes an array.array whole, but checks bytes one by one.
    message.data = array.array("B", pixels.tobytes())
    return message


def camera_info_message(model: mujoco.MjModel, image: Image) -> CameraInfo:
    """A pinhole camera without distortion, from its vertical field of view."""
    fovy_rad = math.radians(float(model.camera(CAMERA_NAME).fovy[0]))
    focal = 0.5 * image.height / math.tan(0.5 * fovy_rad)
    cx, cy = 0.5 * image.width, 0.5 * image.height
    message = CameraInfo(
        height=image.height, width=image.width, distortion_model="plumb_bob", d=[0.0] * 5
    )
    message.header = image.header
    message.k = np.array([focal, 0.0, cx, 0.0, focal, cy, 0.0, 0.0, 1.0])
    message.r = np.eye(3).ravel()
    message.p = np.array([focal, 0.0, cx, 0.0, 0.0, focal, cy, 0.0, 0.0, 0.0, 1.0, 0.0])
    return message
