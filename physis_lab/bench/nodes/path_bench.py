"""Endpoints of `physis bench ros-path`: the cameras, a bare relay, and the robot's command topic.

`python -m physis_lab.bench.nodes.path_bench source|relay|probe FILE`, each in its own process until
SIGINT. The probe writes one row to FILE for each trajectory that reaches the robot.
"""

from __future__ import annotations

import array
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.experimental.events_executor import EventsExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import Image, JointState
from trajectory_msgs.msg import JointTrajectory

from physis_core.observe.rowlog import RowLog
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES
from physis_ros.node.interfaces import JOINT_STATES, JOINT_TRAJECTORY, camera_raw
from physis_ros.node.time_messages import ns_to_time, time_to_ns
from physis_ros.robot.trajectory_messages import TrajectoryWriter

CAMERAS = ("front", "wrist")
RELAYED = "relay/joint_trajectory"
CAMERA_HZ = 30.0
JOINTS_PER_IMAGE = 4
HEIGHT, WIDTH = 480, 640
COLUMNS = {"heard_ns": "ns ROS", "stamp_ns": "ns ROS", "relayed": "0/1"}


def source(node: Node, stop: threading.Event) -> None:
    """Two cameras, triggered together, and the joint states of an arm at rest."""
    cameras = [node.create_publisher(Image, camera_raw(c).name, camera_raw(c).qos) for c in CAMERAS]
    joints = node.create_publisher(JointState, JOINT_STATES.name, JOINT_STATES.qos)
    pixels = np.random.default_rng(0).integers(0, 256, HEIGHT * WIDTH * 3, dtype=np.uint8)
    image = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH)
    image.data = array.array("B", pixels.tobytes())
    state = JointState(name=list(JOINT_NAMES), position=list(HOME_RAD), velocity=[0.0] * 6)
    due_s = time.monotonic()
    tick = 0
    while not stop.is_set():
        stamp = ns_to_time(time.time_ns())
        state.header.stamp = stamp
        joints.publish(state)
        if tick % JOINTS_PER_IMAGE == 0:
            image.header.stamp = stamp
            for camera in cameras:
                camera.publish(image)
        tick += 1
        due_s += 1.0 / (CAMERA_HZ * JOINTS_PER_IMAGE)
        stop.wait(max(0.0, due_s - time.monotonic()))


def relay(node: Node, stop: threading.Event) -> None:
    """The baseline: both images in, a trajectory out, nothing else."""
    out = node.create_publisher(JointTrajectory, RELAYED, JOINT_TRAJECTORY.qos)
    times_s = np.linspace(0.05, 0.4, 8).astype(np.float64)
    positions = np.tile(HOME_RAD, (8, 1))
    writer = TrajectoryWriter(JOINT_NAMES)
    seen: dict[str, int] = {}

    def take(camera: str, message: Image) -> None:
        seen[camera] = time_to_ns(message.header.stamp)
        if len(set(seen.values())) == 1 and len(seen) == len(CAMERAS):
            command = writer.write(times_s, positions, np.zeros_like(positions))
            command.header.stamp = message.header.stamp
            out.publish(command)

    for camera in CAMERAS:
        topic = camera_raw(camera)
        node.create_subscription(Image, topic.name, lambda m, c=camera: take(c, m), topic.qos)
    _spin(node, stop)


def probe(node: Node, stop: threading.Event, path: Path) -> None:
    """Record arrival time and stamp of each trajectory."""
    log = RowLog(path, COLUMNS, flush_rows=1)

    def hear(relayed: bool) -> Callable[[JointTrajectory], None]:
        return lambda m: log.append(time.time_ns(), time_to_ns(m.header.stamp), float(relayed))

    for name, relayed in ((JOINT_TRAJECTORY.name, False), (RELAYED, True)):
        node.create_subscription(JointTrajectory, name, hear(relayed), JOINT_TRAJECTORY.qos)
    _spin(node, stop)
    log.close()


def _spin(node: Node, stop: threading.Event) -> None:
    executor: Any = EventsExecutor()
    executor.add_node(node)
    while not stop.is_set():
        executor.spin_once(timeout_sec=0.05)


def main(role: str, path: str) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(f"path_{role}")
    if role == "source":
        source(node, stop)
    elif role == "relay":
        relay(node, stop)
    else:
        probe(node, stop, Path(path))
    node.destroy_node()
    rclpy.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
