"""Every topic, service, type and QoS of the project, once.

Names are relative: a robot's namespace is put in front, and all can be remapped. QoS is what our
publishers offer and our subscriptions request; a subscription that requests less (a stock
`ros2 topic echo`) matches too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rclpy.duration import Duration
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSPolicyKind,
    QoSProfile,
    ReliabilityPolicy,
)
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float64MultiArray, Header, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.types import UserError
from physis_ros.msg import ActionChunk, Observation, SafetyStatus, StreamStatus
from physis_ros.srv import CloseStream, OpenStream, ResetWorld, StepWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic's relative name, its message class, and the QoS of both ends."""

    name: str
    type: type[Any]
    qos: QoSProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service's relative name (`~/` = below the node's own name) and its class."""

    name: str
    type: type[Any]


def reliable(depth: int) -> QoSProfile:
    """Every message arrives in order, as long as the reader lags by at most `depth`."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.VOLATILE,
    )


def latched() -> QoSProfile:
    """Late subscribers get the last message."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
    )


def sensor_data(depth: int = 5) -> QoSProfile:
    """Best effort: matches every publisher, and a lost image is not sent again."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.VOLATILE,
    )


def camera_raw(camera: str) -> Topic:
    return Topic(name=f"camera/{camera}/image_raw", type=Image, qos=sensor_data())


def camera_compressed(camera: str) -> Topic:
    return Topic(
        name=f"camera/{camera}/image_raw/compressed", type=CompressedImage, qos=sensor_data()
    )


def camera_info(camera: str) -> Topic:
    return Topic(name=f"camera/{camera}/camera_info", type=CameraInfo, qos=sensor_data())


JOINT_STATES = Topic(name="joint_states", type=JointState, qos=sensor_data(depth=10))
OBSERVATION = Topic(name="observation", type=Observation, qos=reliable(1))
INSTRUCTION = Topic(name="instruction", type=String, qos=latched())

ACTION_CHUNK_DEADLINE_S = 0.5
ACTION_CHUNK_LEASE_S = 1.0


def action_chunk(
    deadline_s: float = ACTION_CHUNK_DEADLINE_S,
    lease_s: float = ACTION_CHUNK_LEASE_S,
    *,
    offered: bool = False,
) -> Topic:
    """The chunk topic with a deadline (longest gap between chunks) and a liveliness lease.

    A subscription may request the same or longer times, never shorter ones. A publisher
    (`offered`) asserts its liveliness itself; see docs/decisions/chunk-liveliness.md.
    """
    qos = reliable(8)
    qos.deadline = Duration(seconds=deadline_s)
    qos.liveliness = LivelinessPolicy.MANUAL_BY_TOPIC if offered else LivelinessPolicy.AUTOMATIC
    qos.liveliness_lease_duration = Duration(seconds=lease_s)
    return Topic(name="action_chunk", type=ActionChunk, qos=qos)


ACTION_CHUNK = action_chunk()

SAFETY_COMMAND_IN = Topic(name="safety/command_in", type=JointTrajectory, qos=reliable(1))
SAFETY_TELEOP_IN = Topic(name="safety/teleop_in", type=JointTrajectory, qos=reliable(1))
SAFETY_ESTOP = Topic(name="safety/estop", type=Bool, qos=latched())
SAFETY_DEADMAN = Topic(name="safety/deadman", type=Bool, qos=reliable(1))
SAFETY_COMMANDED_STATE = Topic(
    name="safety/commanded_state", type=JointState, qos=sensor_data(depth=1)
)
SAFETY_HEARTBEAT = Topic(name="safety/heartbeat", type=Header, qos=reliable(1))
JOINT_TRAJECTORY = Topic(
    name="joint_trajectory_controller/joint_trajectory", type=JointTrajectory, qos=reliable(1)
)
FORWARD_POSITION = Topic(
    name="forward_position_controller/commands", type=Float64MultiArray, qos=reliable(1)
)
# One value: the position of the gripper's joint.
GRIPPER_COMMAND = Topic(name="gripper_controller/commands", type=Float64MultiArray, qos=reliable(1))
# Not the controller's topic: what moves the arm of a world must never reach that of a robot.
WORLD_COMMAND = Topic(name="world/command", type=JointTrajectory, qos=reliable(8))
WORLD_PROMPT = Topic(name="world/prompt", type=String, qos=latched())
WORLD_FRAME = Topic(name="world/frame", type=Image, qos=reliable(2))
WORLD_FRAME_COMPRESSED = Topic(name="world/frame/compressed", type=CompressedImage, qos=reliable(2))
WORLD_CAMERA_INFO = Topic(name="world/camera_info", type=CameraInfo, qos=reliable(2))
ROBOT_DESCRIPTION = Topic(name="robot_description", type=String, qos=latched())
# Ground truth of a simulation, for evaluation only.
SIM_TARGET = Topic(name="sim/target", type=PoseStamped, qos=sensor_data())
SIM_END_EFFECTOR = Topic(name="sim/end_effector", type=PoseStamped, qos=sensor_data())
STREAM_STATUS = Topic(name="stream_status", type=StreamStatus, qos=latched())
SAFETY_STATUS = Topic(name="safety_status", type=SafetyStatus, qos=latched())
DIAGNOSTICS = Topic(name="/diagnostics", type=DiagnosticArray, qos=reliable(10))

ESTOP = Service(name="~/estop", type=Trigger)
RESET = Service(name="~/reset", type=Trigger)
ENABLE = Service(name="~/enable", type=SetBool)
HAND_BACK = Service(name="~/hand_back", type=Trigger)
OPEN_STREAM = Service(name="open_stream", type=OpenStream)
CLOSE_STREAM = Service(name="close_stream", type=CloseStream)
WORLD_STEP = Service(name="world/step", type=StepWorld)
WORLD_RESET = Service(name="world/reset", type=ResetWorld)


def in_namespace(topic: Topic, namespace: str) -> Topic:
    """The topic of another robot: `in_namespace(OBSERVATION, "left")` is `left/observation`."""
    if not namespace:
        return topic
    return replace(topic, name=f"{namespace.rstrip('/')}/{topic.name}")


def qos_mismatch(policy_kind: int, *, topic: str, we: str) -> str:
    """One line for a peer with incompatible QoS that names the policy.

    `we` is "subscribe" or "publish"; `policy_kind` is `last_policy_kind` of the DDS event.
    """
    try:
        policy = QoSPolicyKind(policy_kind).name
    except ValueError:
        policy = f"kind {policy_kind}"
    if we == "subscribe":
        return f"{topic}: a publisher offers an incompatible {policy}; nothing arrives from it"
    if we == "publish":
        return f"{topic}: a subscriber asks for an incompatible {policy}; nothing goes to it"
    raise UserError("we", we, "must be 'subscribe' or 'publish'")
