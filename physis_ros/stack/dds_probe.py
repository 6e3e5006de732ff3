"""Probe with two ends: does DDS carry our messages between two processes of this machine?

`python -m physis_ros.stack.dds_probe talk|listen SECONDS`: the listener prints `heard` and exits
with 0, or with 1 after so many seconds. `physis doctor` runs both.
"""

from __future__ import annotations

import sys
import time

import rclpy

from physis_ros.msg import Percentiles
from physis_ros.node.interfaces import reliable

TOPIC = "physis_doctor_probe"
MARK = 4711


def main(role: str, limit_s: float) -> int:
    rclpy.init()
    node = rclpy.create_node(f"physis_doctor_{role}")
    end_s = time.monotonic() + limit_s
    heard: list[int] = []
    if role == "talk":
        publisher = node.create_publisher(Percentiles, TOPIC, reliable(1))
        while time.monotonic() < end_s:
            publisher.publish(Percentiles(n=MARK))
            rclpy.spin_once(node, timeout_sec=0.1)
    else:
        node.create_subscription(Percentiles, TOPIC, lambda m: heard.append(m.n), reliable(1))
        while time.monotonic() < end_s and MARK not in heard:
            rclpy.spin_once(node, timeout_sec=0.1)
    node.destroy_node()
    rclpy.shutdown()
    if MARK in heard:
        print("heard", flush=True)
    return 0 if role == "talk" or MARK in heard else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
