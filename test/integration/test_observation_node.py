"""The observation node as a process: whole observations, or a reason on /diagnostics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import String

from physis_ros.node.clock import LEAST_CLOCK_HZ
from physis_ros.node.image_messages import rgb_to_compressed, rgb_to_image
from physis_ros.node.interfaces import (
    INSTRUCTION,
    JOINT_STATES,
    OBSERVATION,
    Service,
    Topic,
    camera_compressed,
    camera_raw,
    sensor_data,
)
from physis_ros.node.time_messages import ns_to_time, time_to_ns

INPUTS = (
    "model:=''",
    "camera_names:=[front, wrist]",
    "compressed_cameras:=[wrist]",
    "joint_names:=[a, b]",
    "image_height:=32",
    "image_width:=32",
    "joint_state_topics:=[joint_states, gripper/joint_states]",
    "max_age_s:=0.5",
    "slop_s:=0.05",
)


class Sensors:
    """Two cameras and two joint publishers at 20 Hz, with faults to switch on."""

    def __init__(self, ros: Any) -> None:
        self.encoding = "rgb8"
        self.freeze = False
        self.back_s = 0.0
        self.second_joint = True
        self.position = 0.5
        self._ros = ros
        self._frozen_ns = 0
        self._front = ros.publisher(camera_raw("front"))
        self._wrist = ros.publisher(camera_compressed("wrist"))
        self._joints = ros.publisher(JOINT_STATES)
        self._gripper = ros.publisher(
            Topic(name="gripper/joint_states", type=JointState, qos=JOINT_STATES.qos)
        )
        ros.every(0.05, self.publish)

    def publish(self) -> None:
        now_ns = self._ros.node.get_clock().now().nanoseconds
        stamp = ns_to_time(now_ns)
        rgb = np.zeros((48, 64, 3), np.uint8)
        rgb[:, :, 0] = 200
        for publisher, name, position in (
            (self._joints, "a", self.position),
            (self._gripper, "b", -0.5),
        ):
            if name == "b" and not self.second_joint:
                continue
            state = JointState(name=["finger_mimic", name], position=[9.0, position])
            state.header.stamp = stamp
            publisher.publish(state)
        if not self.freeze:
            self._frozen_ns = now_ns - round(self.back_s * 1e9)
        front = rgb_to_image(rgb, stamp=ns_to_time(self._frozen_ns), frame_id="front_optical")
        front.encoding = self.encoding
        self._front.publish(front)
        self._wrist.publish(rgb_to_compressed(rgb, stamp=stamp, frame_id="wrist_optical"))


def test_observations_are_whole_and_what_is_missing_is_named(ros: Any) -> None:
    heard = ros.listen(OBSERVATION)
    sensors = Sensors(ros)
    latched = ros.publisher(INSTRUCTION)
    latched.publish(String(data="follow the ball"))
    node = ros.start("observation_node", *INPUTS)
    ros.wait(lambda: len(heard) > 5, "observations")
    message = heard[-1]
    assert list(message.camera_names) == ["front", "wrist"]
    assert [(image.height, image.width, image.encoding) for image in message.images] == [
        (32, 32, "rgb8")
    ] * 2
    for image in message.images:
        mean = np.frombuffer(image.data, np.uint8).reshape(-1, 3).mean(axis=0)
        assert np.abs(mean - [200, 0, 0]).max() < 8
    assert list(message.joint_names) == ["a", "b"]
    assert list(message.positions) == [0.5, -0.5]
    assert list(message.velocities) == []
    assert message.instruction == "follow the ball"
    assert time_to_ns(message.capture_oldest) <= time_to_ns(message.capture_newest)
    assert time_to_ns(message.receipt) >= time_to_ns(message.capture_newest)
    numbers = [m.observation_id for m in heard]
    assert numbers == sorted(set(numbers))
    ros.wait_for_diagnosis("observation_node: observation", "observing")

    faults = [
        ("encoding", "nv12", "rgb8", "camera/front.encoding: 'nv12': unknown"),
        ("encoding", "16UC1", "rgb8", "camera/front.encoding: '16UC1': is a depth image"),
        ("freeze", True, False, "camera/front: frozen: it repeats one stamp"),
        ("second_joint", False, True, "joint/b: silent"),
        ("position", float("nan"), 0.5, "joint_states.position[a]: nan: must be finite"),
        ("back_s", -5.0, 0.0, "camera/front: its stamp lies"),
    ]
    for name, bad, good, said in faults:
        setattr(sensors, name, bad)
        ros.wait_for_diagnosis("observation_node: observation", said)
        heard.clear()
        for _ in range(5):
            ros.spin(0.05)
        assert not heard, f"an observation came in spite of {name}"
        setattr(sensors, name, good)
        ros.wait(lambda: heard, f"observations after {name}")
    assert ros.stop(node) == 0


def test_an_incompatible_camera_is_named_with_its_policy(ros: Any) -> None:
    late = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
    late.durability = DurabilityPolicy.VOLATILE
    Sensors(ros)
    ros.node.create_publisher(INSTRUCTION.type, INSTRUCTION.name, late)
    ros.start("observation_node", *INPUTS)
    ros.wait_for_diagnosis("observation_node: node", "instruction: a publisher offers an incompat")


def test_life_cycle_by_service(ros: Any) -> None:
    heard = ros.listen(OBSERVATION)
    Sensors(ros)
    node = ros.start("observation_node", *INPUTS, "autostart:=false")
    state = Service(name="observation_node/get_state", type=GetState)
    change = Service(name="observation_node/change_state", type=ChangeState)

    def go(label: str) -> bool:
        request = ChangeState.Request()
        request.transition.label = label
        return bool(ros.call(change, request).success)

    assert ros.call(state, GetState.Request()).current_state.label == "unconfigured"
    assert go("configure")
    assert ros.call(state, GetState.Request()).current_state.label == "inactive"
    assert not heard
    assert go("activate")
    ros.wait(lambda: heard, "observations")
    assert go("deactivate")
    ros.spin(0.2)
    heard.clear()
    for _ in range(5):
        ros.spin(0.05)
    assert not heard
    assert go("activate")
    ros.wait(lambda: heard, "observations again")
    assert go("deactivate")
    assert go("cleanup")
    assert ros.stop(node) == 0


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (("model:=nothing",), "model: 'nothing': no such file"),
        (("model:=''",), "joint_names: []: set it, or model"),
        (
            ("model:=physis_tiny_follow", "robot_file:=panda"),
            "joint_names: 'shoulder_pan_joint, shoulder_lift_joint, elbow_joint, wrist_1_joint, "
            "wrist_2_joint, wrist_3_joint': the model needs this; the robot panda has panda_joint1",
        ),
        (
            ("model:=physis_tiny_follow", "camera_names:=[side, wrist]"),
            "camera_names: 'front': the model needs this; the parameter camera_names has side, wr",
        ),
        ((*INPUTS, "slop:=0.1"), "did you mean 'slop_s'?"),
        ((*INPUTS, "max_rate_hz:=0.0"), "max_rate_hz: 0.0: must be at least 0.1 Hz"),
    ],
)
def test_bad_parameters_get_one_line(ros: Any, parameters: tuple[str, ...], said: str) -> None:
    node = ros.start("observation_node", *parameters)
    ros.wait(lambda: node.poll() is not None, "the node to end")
    assert node.returncode == 2
    lines = [line for line in ros.log(node).splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert said in lines[0]


def test_two_publishers_of_one_joint_that_disagree_are_named_and_nothing_is_observed(
    ros: Any,
) -> None:
    """As a joint_state_publisher that was left running beside the robot's driver."""
    heard = ros.listen(OBSERVATION)
    Sensors(ros)
    node = ros.start("observation_node", *INPUTS)
    ros.wait(lambda: len(heard) > 3, "observations")
    other = ros.another_node("sliders")
    zeros = other.create_publisher(JOINT_STATES.type, JOINT_STATES.name, JOINT_STATES.qos)

    def send_zeros() -> None:
        state = JointState(name=["a"], position=[0.0])
        state.header.stamp = ros.node.get_clock().now().to_msg()
        zeros.publish(state)

    ros.wait(lambda: zeros.get_subscription_count() > 0, "the node to listen")
    timer = ros.every(0.05, send_zeros)
    ros.wait_for_diagnosis("observation_node: observation", "two publishers disagree: a is ")
    heard.clear()
    for _ in range(40):
        ros.spin(0.05)
    assert not heard
    log = ros.log(node)
    assert log.count("two publishers disagree") == 1
    line = next(each for each in log.splitlines() if "two publishers disagree" in each)
    assert "0.500 from /bench" in line
    assert "0.000 from /sliders" in line
    assert "goes on" not in log
    timer.cancel()
    ros.wait(lambda: heard, "observations after the second publisher stopped")
    assert all(list(each.positions) == [0.5, -0.5] for each in heard)
    assert ros.stop(node) == 0


def test_what_never_comes_is_said_on_the_console(ros: Any) -> None:
    sensors = Sensors(ros)
    sensors.second_joint = False
    node = ros.start("observation_node", *INPUTS)
    ros.wait(lambda: "waits for" in ros.log(node), "a line on the console")
    (line,) = [each for each in ros.log(node).splitlines() if "waits for" in each]
    assert "joint/b: nothing has come yet" in line
    assert "camera" not in line
    sensors.second_joint = True
    ros.wait(lambda: "goes on after" in ros.log(node), "its end")
    assert ros.stop(node) == 0


@pytest.mark.parametrize("rate_hz", [25.0, 10.0])
def test_stamps_may_be_finer_than_a_simulated_clock(ros: Any, rate_hz: float) -> None:
    """Sensors that stamp each instant, and a /clock that comes in steps; a coarse one is named."""
    heard = ros.listen(OBSERVATION)
    Sensors(ros)
    clock = ros.publisher(Topic(name="/clock", type=Clock, qos=sensor_data(1)))
    ros.every(
        1.0 / rate_hz,
        lambda: clock.publish(Clock(clock=ros.node.get_clock().now().to_msg())),
    )
    node = ros.start("observation_node", *INPUTS, "use_sim_time:=true")
    ros.wait(lambda: len(heard) > 20, "observations")
    heard.clear()
    ros.wait(lambda: len(heard) > 20, "observations with a known step of the clock")
    # A late /clock of a busy machine leaves a stamp more than one step ahead.
    trusted = [each for each in heard if not each.clock_suspect]
    assert len(trusted) > 0.8 * len(heard)
    for each in trusted:
        assert time_to_ns(each.capture_newest) <= time_to_ns(each.receipt)
    if rate_hz < LEAST_CLOCK_HZ:
        ros.wait_for_diagnosis("observation_node: node", "/clock advances in steps of 0.1")
    assert ros.stop(node) == 0
