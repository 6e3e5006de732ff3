"""Looks at the robot that runs in this domain: who commands its controllers, who says its joints.

`python -m physis_ros.stack.graph_probe SECONDS` listens for at least so long and prints what it saw
as JSON. `physis doctor` runs it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import rclpy
from sensor_msgs.msg import JointState

from physis_ros.node.graph import publisher_names, with_publisher
from physis_ros.node.interfaces import JOINT_STATES

_COMMAND_TYPES = {
    "trajectory_msgs/msg/JointTrajectory": "/joint_trajectory",
    "std_msgs/msg/Float64MultiArray": "/commands",
}
"""The topics of a ros2_control controller, by type: how their names end."""
_JOINT_STATES = ("sensor_msgs/msg/JointState", "/joint_states")
_LONGEST_S = 6.5
"""Fast DDS announces a participant every 3 s: where its first announcements were lost, again."""


def look(seconds: float) -> dict[str, Any]:
    """What there is after so many seconds in the domain; later where nothing was seen by then, or
    a publisher of joint states has said nothing, but not after `_LONGEST_S`.

    `commands`: by topic, the nodes that publish it. `joints`: by topic and node, the positions that
    it said last (empty where it said nothing, or rclpy does not tell publishers apart).
    """
    rclpy.init(args=[])
    node = rclpy.create_node("physis_doctor_graph")
    heard: dict[str, dict[bytes | None, dict[str, float]]] = {}
    listening: list[Any] = []

    def listen(topic: str) -> None:
        said = heard.setdefault(topic, {})

        def take(message: JointState, publisher: bytes | None) -> None:
            said.setdefault(publisher, {}).update(zip(message.name, message.position))

        callback = with_publisher(take)
        listening.append(node.create_subscription(JointState, topic, callback, JOINT_STATES.qos))

    def complete() -> bool:
        if not heard:
            return False
        return all(
            None in said or len(said) >= len(publisher_names(node, topic))
            for topic, said in heard.items()
        )

    start_s = time.monotonic()
    while (now_s := time.monotonic() - start_s) < seconds or (
        now_s < _LONGEST_S and not complete()
    ):
        for topic in _topics(node, *_JOINT_STATES):
            if topic not in heard:
                listen(topic)
        rclpy.spin_once(node, timeout_sec=0.05)
    commands = {
        topic: sorted(publisher_names(node, topic).values())
        for kind, end in _COMMAND_TYPES.items()
        for topic in _topics(node, kind, end)
    }
    joints: dict[str, dict[str, dict[str, float]]] = {}
    for topic, said in heard.items():
        own = joints[topic] = {}
        for identity, name in publisher_names(node, topic).items():
            # Two nodes may have one name.
            place = f"{name} ({identity.hex()[-8:]})" if name in own else name
            own[place] = said.get(identity, {})
    node.destroy_node()
    rclpy.shutdown()
    return {
        "commands": {topic: names for topic, names in commands.items() if names},
        "joints": {topic: said for topic, said in joints.items() if said},
    }


def _topics(node: Any, kind: str, end: str) -> Sequence[str]:
    return [
        name
        for name, kinds in node.get_topic_names_and_types()
        if kind in kinds and name.endswith(end)
    ]


if __name__ == "__main__":
    print(json.dumps(look(float(sys.argv[1]))))
