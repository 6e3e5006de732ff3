"""Move one joint a little and back, through safety_node: the first motion of a robot of your own.

The script speaks as a teleoperator on `safety/teleop_in`. safety_node checks each trajectory and
forwards it to the robot's trajectory controller; nothing reaches the robot by another path.

    python docs/examples/first_motion.py --arm --joint wrist_3_joint --by 0.05

It needs joint states, a running safety_node, and ROS 2 with the messages of physis_ros. With --arm
it calls safety_node's ~/enable first; the answer says what is not right yet.
"""

from __future__ import annotations

import argparse
import re
import sys
import time

import rclpy
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.msg import SafetyStatus

DISCOVERY_S = 20.0
VERDICTS = {0: "OK", 1: "LIMIT", 2: "HOLD", 3: "STOP"}


class FirstMotion(Node):
    def __init__(self) -> None:
        super().__init__("first_motion")
        self.joints: JointState | None = None
        self.status: SafetyStatus | None = None
        self.said = ""
        self.create_subscription(
            JointState, "joint_states", self._on_joints, qos_profile_sensor_data
        )
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(SafetyStatus, "safety_status", self._on_status, latched)
        self.command = self.create_publisher(JointTrajectory, "safety/teleop_in", 1)
        self.enable = self.create_client(SetBool, "safety_node/enable")

    def _on_joints(self, message: JointState) -> None:
        self.joints = message

    def _on_status(self, message: SafetyStatus) -> None:
        self.status = message
        said = f"safety: {VERDICTS[message.verdict]} {message.reason}"
        # A reason that only counts seconds up is not new.
        if re.sub(r"[0-9.]+", "", said) != re.sub(r"[0-9.]+", "", self.said):
            self.said = said
            print(said, flush=True)

    def spin_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            rclpy.spin_once(self, timeout_sec=0.02)

    def arm(self) -> bool:
        """Arm the safety controller; it has a moment to see that the robot rests."""
        end_s = time.monotonic() + DISCOVERY_S
        answer = "safety_node/enable does not answer"
        while time.monotonic() < end_s:
            asked = self.enable.call_async(SetBool.Request(data=True))
            rclpy.spin_until_future_complete(self, asked, timeout_sec=2.0)
            result = asked.result()
            if result is not None:
                answer = result.message
                if result.success:
                    print(f"safety_node: {answer}", flush=True)
                    return True
            self.spin_for(0.5)
        print(f"safety_node: {answer}", file=sys.stderr, flush=True)
        return False

    def position(self, joint: str) -> float:
        assert self.joints is not None
        return float(self.joints.position[list(self.joints.name).index(joint)])

    def move(self, joint: str, target_rad: float, seconds: float) -> None:
        """One trajectory with one point: safety_node checks the cubic that leads there."""
        assert self.joints is not None and self.status is not None
        names = list(self.joints.name)
        goal = [target_rad if n == joint else self.position(n) for n in names]
        point = JointTrajectoryPoint(positions=goal, velocities=[0.0] * len(names))
        point.time_from_start.sec = int(seconds)
        point.time_from_start.nanosec = round((seconds % 1.0) * 1e9)
        self.command.publish(JointTrajectory(joint_names=names, points=[point]))
        self.spin_for(seconds + 1.0)
        print(f"{joint}: wanted {target_rad:.4f}, measured {self.position(joint):.4f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--joint", required=True)
    parser.add_argument("--by", type=float, default=0.05, help="radians, or metres")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of each way")
    parser.add_argument("--arm", action="store_true", help="call safety_node's ~/enable first")
    arguments = parser.parse_args()
    rclpy.init()
    node = FirstMotion()
    end_s = time.monotonic() + DISCOVERY_S
    while (node.joints is None or node.status is None) and time.monotonic() < end_s:
        node.spin_for(0.5)
    if node.joints is None or node.status is None:
        print("no joint_states, or no safety_status: is safety_node running?", file=sys.stderr)
        return 1
    if arguments.joint not in node.joints.name:
        print(f"{arguments.joint}: not in joint_states: {list(node.joints.name)}", file=sys.stderr)
        return 2
    if arguments.arm and not node.arm():
        return 1
    home = node.position(arguments.joint)
    node.move(arguments.joint, home + arguments.by, arguments.seconds)
    moved = node.position(arguments.joint) - home
    node.move(arguments.joint, home, arguments.seconds)
    done = abs(moved - arguments.by) < 0.25 * abs(arguments.by)
    print("teleop keeps control until safety_node's ~/hand_back is called")
    print("moved there and back" if done else "did not follow; read safety_status")
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
