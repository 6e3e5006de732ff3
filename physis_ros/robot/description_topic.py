"""The robot's limits for a node, with the URDF from a topic where its parameters name one."""

from __future__ import annotations

from typing import TypeVar

import rclpy
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import String

from physis_core.types import UserError
from physis_ros.node.base import PhysisNode
from physis_ros.node.interfaces import ROBOT_DESCRIPTION
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.parameters import RobotParameters

WAIT_S = 30.0
_SAY_AFTER_S = 3.0
_LOOK_S = 0.1

P = TypeVar("P", bound=RobotParameters)


def limits_for(node: PhysisNode[P]) -> RobotLimits:
    """What the parameters of the node name. Waits for the topic's message, up to `WAIT_S`.

    Raises:
        UserError: a source is wrong, or no description was published in that time.
        InterruptedError: the process was asked to end.
    """
    return node.params.limits(published_description(node))


def published_description(node: PhysisNode[P]) -> str:
    """The URDF text from the topic that the parameters name; empty where they name none. Waits and
    raises as `limits_for`."""
    topic = node.params.robot_description_topic
    if not topic:
        return ""
    name = node.resolve_topic_name(topic)
    # The node itself may be inside a callback of its executor, which would not turn meanwhile.
    listener = rclpy.create_node(
        f"{node.get_name()}_description", context=node.context, use_global_arguments=False
    )
    executor = SingleThreadedExecutor(context=node.context)
    heard: list[str] = []
    try:
        listener.create_subscription(
            String, name, lambda message: heard.append(message.data), ROBOT_DESCRIPTION.qos
        )
        executor.add_node(listener)
        begun_s = node.steady_s()
        said = False
        while not heard:
            executor.spin_once(timeout_sec=_LOOK_S)
            waited_s = node.steady_s() - begun_s
            if node.stopping():
                raise InterruptedError(f"ended while waiting for {name}")
            if waited_s > WAIT_S:
                reason = f"nothing was published on {name} in {WAIT_S:g} s"
                raise UserError("robot_description_topic", topic, reason)
            if waited_s > _SAY_AFTER_S and not said:
                said = True
                node.get_logger().info(f"waiting for the robot's description on {name}")
    finally:
        executor.shutdown()
        listener.destroy_node()
    return heard[-1]
