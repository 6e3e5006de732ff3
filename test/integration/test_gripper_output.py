"""safety_node with a gripper that has a controller of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.msg import SafetyStatus
from physis_ros.node.interfaces import (
    GRIPPER_COMMAND,
    JOINT_STATES,
    JOINT_TRAJECTORY,
    SAFETY_COMMAND_IN,
    SAFETY_STATUS,
)

ROBOT = """
robot: two joints and a finger
joints:
  a: {lower_rad: -2.0, upper_rad: 2.0, velocity_rad_s: 2.0, acceleration_rad_s2: 8.0, jump_rad: 0.4}
  b: {lower_rad: -2.0, upper_rad: 2.0, velocity_rad_s: 2.0, acceleration_rad_s2: 8.0, jump_rad: 0.4}
  finger: {lower_m: 0.0, upper_m: 0.08, velocity_m_s: 0.2, acceleration_m_s2: 2.0, jump_m: 0.1,
           rest_m: 0.1, tracking_m: 0.1}
"""
HELD_M = 0.03


def test_the_gripper_has_its_own_topic_and_goes_on_pressing(ros: Any, tmp_path: Path) -> None:
    robot = tmp_path / "robot.yaml"
    robot.write_text(ROBOT)
    status = ros.listen(SAFETY_STATUS)
    to_arm, to_fingers = ros.listen(JOINT_TRAJECTORY), ros.listen(GRIPPER_COMMAND)
    states = ros.publisher(JOINT_STATES)
    commands = ros.publisher(SAFETY_COMMAND_IN)
    # The fingers hold something and go no further; the arm rests.
    seen = JointState(name=["left_a", "left_b", "left_finger"], position=[0.0, 0.0, HELD_M])

    def say() -> None:
        seen.header.stamp = ros.node.get_clock().now().to_msg()
        states.publish(seen)

    ros.every(0.01, say)
    command = JointTrajectory(
        joint_names=["left_a", "left_b", "left_finger"],
        points=[
            JointTrajectoryPoint(
                positions=[0.0, 0.0, 0.0],
                velocities=[0.0] * 3,
                time_from_start=Duration(nanosec=600_000_000),
            )
        ],
    )
    ros.start(
        "safety_node",
        f"robot_file:={robot}",
        # The robot's driver puts a prefix in front of its joints; its files do not.
        "joint_prefix:=left_",
        "gripper_joint:=finger",
        "enabled_at_start:=true",
    )
    ros.wait(
        lambda: status and status[-1].reason == "no command yet",
        "safety_node to wait for a command",
    )
    # Until a command comes it stays as it is.
    ros.wait(lambda: to_fingers, "the first position of the gripper")
    assert to_fingers[-1].data.tolist() == [HELD_M]
    ros.every(0.2, lambda: commands.publish(command))
    ros.wait(lambda: to_fingers[-1].data[0] == 0.0, "the gripper to be closed")
    closing = np.array([message.data[0] for message in to_fingers])
    assert np.all(np.diff(closing) <= 1e-9)
    assert np.any((closing > 0.0) & (closing < HELD_M)), "it closes by degrees"
    assert {tuple(message.joint_names) for message in to_arm} == {("left_a", "left_b")}
    # Held for longer than it takes to look where a resting robot is.
    count = len(to_fingers)
    ros.wait(lambda: len(to_fingers) > count + 60, "more positions")
    assert {message.data[0] for message in to_fingers[count:]} == {0.0}
    assert status[-1].verdict == SafetyStatus.OK, status[-1].reason


def test_a_gripper_that_is_no_joint_of_the_robot_is_refused(ros: Any, tmp_path: Path) -> None:
    robot = tmp_path / "robot.yaml"
    robot.write_text(ROBOT)
    node = ros.start("safety_node", f"robot_file:={robot}", "gripper_joint:=fingre")
    ros.wait(lambda: node.poll() is not None, "the node to end")
    assert node.returncode == 2
    assert "gripper_joint: 'fingre': is none of a, b, finger" in ros.log(node)
