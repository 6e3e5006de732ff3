"""Recorder of `physis bench safety`: `python -m physis_lab.bench.nodes.safety_probe ROLE FILE`.

`state`: one row per safety_status. `windows`: one JSON line per window of the buffer, with its
start, times and velocities. Runs until SIGINT; FILE exists as soon as the subscription does.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import rclpy
from rclpy.experimental.events_executor import EventsExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from trajectory_msgs.msg import JointTrajectory

from physis_core.observe.rowlog import RowLog
from physis_ros.msg import SafetyStatus
from physis_ros.node.interfaces import SAFETY_COMMAND_IN, SAFETY_STATUS
from physis_ros.node.time_messages import time_to_ns

COLUMNS = {"heard_ns": "ns ROS", "stamp_ns": "ns ROS", "verdict": "as in SafetyStatus"}


def state(node: Node, path: Path) -> None:
    log = RowLog(path, COLUMNS, flush_rows=1)

    def hear(message: SafetyStatus) -> None:
        log.append(time.time_ns(), time_to_ns(message.header.stamp), message.verdict)

    node.create_subscription(SAFETY_STATUS.type, SAFETY_STATUS.name, hear, SAFETY_STATUS.qos)


def windows(node: Node, path: Path) -> None:
    log = path.open("w", buffering=1)

    def hear(message: JointTrajectory) -> None:
        line = {
            "start_ns": time_to_ns(message.header.stamp) or time.time_ns(),
            "times_s": [time_to_ns(p.time_from_start) * 1e-9 for p in message.points],
            "velocities": [list(p.velocities) for p in message.points],
        }
        log.write(json.dumps(line) + "\n")

    topic = SAFETY_COMMAND_IN
    node.create_subscription(topic.type, topic.name, hear, topic.qos)


def main(role: str, path: str) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(f"safety_probe_{role}")
    {"state": state, "windows": windows}[role](node, Path(path))
    executor: Any = EventsExecutor()
    executor.add_node(node)
    while not stop.is_set():
        executor.spin_once(timeout_sec=0.05)
    node.destroy_node()
    rclpy.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
