"""buffer_node and safety_node as processes; the test is the engine, the robot and the judge.

The robot is the emulated joint_trajectory_controller: what it would do with what safety forwards.
"""

from __future__ import annotations

import array
import math
import re
import signal
import time
from collections import deque

import numpy as np
import pytest
import rclpy
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from physis_core.observe.rowlog import read_rows
from physis_lab.arm.judge import MotionJudge, Passed
from physis_lab.arm.limits import JOINT_NAMES, UR5E_LIMITS
from physis_ros.msg import ActionChunk, SafetyStatus, StreamStatus
from physis_ros.node.interfaces import (
    JOINT_STATES,
    JOINT_TRAJECTORY,
    SAFETY_ESTOP,
    SAFETY_HEARTBEAT,
    SAFETY_STATUS,
    STREAM_STATUS,
    Service,
)
from physis_ros.node.time_messages import time_to_ns
from physis_ros.robot.point_interpolation import MotionState
from physis_ros.robot.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
    TrajectoryPoint,
)

TICK_S = 0.008
CHUNK_S = 0.1
STEP_S = 0.05
HOME = np.array([0.0, -1.2, 1.4, -1.6, -1.5, 0.0])
SWING = np.array([0.3, 0.15, -0.2, 0.1, 0.1, 0.3])


def still(position):
    return MotionState(position=position, velocity=np.zeros(6), acceleration=np.zeros(6))


def resting_controller():
    return TrajectoryController(
        ControllerConfig(joint_names=JOINT_NAMES, interpolate_from_desired_state=True),
        still(HOME),
    )


class Stage:
    """A robot that obeys and an engine that sends chunks, both in this process, however busy it is.

    The judge comes afterwards (`assert_fine`): it plays every trajectory that was forwarded again,
    tick by tick, as a controller that had each one in time. So a slow test is not taken for a robot
    that jumps.
    """

    def __init__(self, ros):
        self.ros = ros
        self.controller = resting_controller()
        self.position = HOME.copy()
        self.speed = 0.0
        self.sends_chunks = True
        self.sends_joints = True
        self.epoch, self.chunk_id = 1, 0
        self.begun_s = None
        self.breaks = None
        self.forwarded = []
        self.begun_at_s = self.next_tick_s = time.time()
        self.joints = ros.publisher(JOINT_STATES)
        self.chunks = ros.chunk_publisher()
        ros.node.create_subscription(
            JointTrajectory, JOINT_TRAJECTORY.name, self._on_trajectory, JOINT_TRAJECTORY.qos
        )
        self.safety = ros.listen(SAFETY_STATUS)
        self.stream = ros.listen(STREAM_STATUS)
        ros.every(TICK_S, self._move)
        ros.every(CHUNK_S, self._think)

    def start(self, *buffer_parameters, safety_parameters=("enabled_at_start:=true",)):
        self.buffer = self.ros.start("buffer_node", *buffer_parameters)
        self.guard = self.ros.start("safety_node", *safety_parameters)
        return self

    def start_and_move(self, *buffer_parameters):
        self.start(*buffer_parameters)
        self.wait_verdict(SafetyStatus.OK)
        self.ros.wait(lambda: self.stream and self.speed > 0.05, "the robot to move, and to say so")
        return self

    def verdict(self):
        return self.safety[-1] if self.safety else None

    def wait_verdict(self, verdict, reason=""):
        start = len(self.safety)
        self.ros.wait(
            lambda: any(s.verdict == verdict and reason in s.reason for s in self.safety[start:]),
            f"verdict {verdict} {reason!r}",
        )

    def wait_rest(self):
        end = len(self.safety)
        quiet = [0]

        def resting():
            quiet[0] = quiet[0] + 1 if self.speed < 1e-9 else 0
            return quiet[0] > 10

        self.ros.wait(resting, "the robot to rest")
        return end

    def assert_fine(self):
        controller, position = resting_controller(), HOME.copy()
        judge = MotionJudge(UR5E_LIMITS, TICK_S, tolerance=0.05)
        waiting = deque(sorted(self.forwarded, key=lambda entry: entry[0]))
        passed, tick_s = {}, self.begun_at_s
        while waiting or tick_s < time.time():
            while waiting and waiting[0][0] <= tick_s:
                assert controller.accept(waiting.popleft()[1], tick_s) is None
            position = controller.update(tick_s, still(position)).state.position.copy()
            found = judge.look(position, position, np.zeros(6))
            if found is not Passed.NONE:
                passed[round(tick_s - self.begun_at_s, 3)] = found
            tick_s += TICK_S
        assert passed == {}

    # The engine --------------------------------------------------------------------------------

    def _think(self):
        if not self.sends_chunks:
            return
        now_ns = self.ros.node.get_clock().now().nanoseconds
        if self.begun_s is None:
            self.begun_s = now_ns * 1e-9
        message = ActionChunk(stream_id="arm", epoch=self.epoch, chunk_id=self.chunk_id)
        self.chunk_id += 1
        for stamp, offset_ms in (
            (message.capture_oldest, -80),
            (message.capture_newest, -80),
            (message.receipt, -70),
            (message.entry, -60),
            (message.header.stamp, 0),
            (message.deadline, 50),
            (message.start, -10),
        ):
            stamp.sec, stamp.nanosec = divmod(now_ns + offset_ms * 1_000_000, 1_000_000_000)
        message.step.nanosec = round(STEP_S * 1e9)
        at = now_ns * 1e-9 - 0.01 - self.begun_s + np.arange(8) * STEP_S
        rows = HOME + (1.0 - np.cos(1.5 * np.maximum(at, 0.0)))[:, None] * SWING
        message.joint_names = list(JOINT_NAMES)
        message.positions = array.array("d", rows.ravel())
        if self.breaks is not None:
            self.breaks(message)
        self.chunks.publish(message)

    # The robot ---------------------------------------------------------------------------------

    def _on_trajectory(self, message, info):
        stamp_ns = time_to_ns(message.header.stamp)
        trajectory = Trajectory(
            joint_names=tuple(message.joint_names),
            start_s=stamp_ns * 1e-9 if stamp_ns else None,
            points=tuple(
                TrajectoryPoint(
                    time_from_start_s=time_to_ns(p.time_from_start) * 1e-9,
                    positions=tuple(p.positions),
                    velocities=tuple(p.velocities),
                )
                for p in message.points
            ),
        )
        sent_s = info["source_timestamp"] * 1e-9
        start_s = sent_s if trajectory.start_s is None else trajectory.start_s
        self.forwarded.append((min(sent_s, start_s), trajectory))
        self.controller.accept(trajectory, self.next_tick_s)

    def _move(self):
        while self.next_tick_s <= time.time():
            command = self.controller.update(self.next_tick_s, still(self.position)).state.position
            self.speed = float(np.max(np.abs(command - self.position))) / TICK_S
            self.position = command.copy()
            self.next_tick_s += TICK_S
        if self.sends_joints:
            message = JointState(name=list(JOINT_NAMES), position=self.position.tolist())
            message.header.stamp = self.ros.node.get_clock().now().to_msg()
            self.joints.publish(message)


@pytest.fixture
def stage(ros):
    return Stage(ros)


def service(name, kind):
    return Service(name=f"safety_node/{name}", type=kind)


def test_chunks_move_the_robot_and_every_number_is_there(stage, tmp_path):
    beats = stage.ros.listen(SAFETY_HEARTBEAT)
    stage.start_and_move(f"record_path:={tmp_path}")
    # A busy machine may let the chunks run out for a moment: what is judged is a status in play.
    stage.ros.wait(
        lambda: stage.stream[-1].chunks > 15 and stage.stream[-1].state == StreamStatus.PLAYING,
        "a stream in play after 15 chunks",
    )
    seen = stage.stream[-1]
    assert seen.reason == ""
    assert seen.stream_id == "arm"
    assert seen.response_latency_ms.p50 == pytest.approx(60.0)
    assert seen.capture_ms.p50 == pytest.approx(10.0)
    assert seen.queue_ms.p50 == pytest.approx(10.0)
    assert seen.action_age_handoff_ms.p50 > 80.0
    assert seen.action_age_servo_ms.p50 > seen.action_age_handoff_ms.p50
    assert seen.handoff_ms.n > 10
    assert seen.servo_hz > 0.0
    assert seen.chunk_hz > 0.0
    assert beats
    stage.sends_chunks = False
    stage.wait_rest()
    stage.assert_fine()
    assert stage.ros.stop(stage.buffer) == 0
    assert stage.ros.stop(stage.guard) == 0
    assert read_rows(tmp_path / "chunks.rows").rows > 15
    assert read_rows(tmp_path / "servo.rows").rows > 100


def test_silence_of_the_engine_ends_in_rest_and_is_said(stage):
    stage.start_and_move()
    stage.sends_chunks = False
    stage.wait_rest()
    stage.wait_verdict(SafetyStatus.HOLD, "no command for")
    stage.ros.wait(lambda: stage.stream[-1].state == StreamStatus.UNDERRUN, "an underrun")
    assert "no chunk for" in stage.stream[-1].reason
    stage.assert_fine()
    # Another engine process counts from another epoch.
    stage.epoch, stage.chunk_id, stage.begun_s = 2, 0, None
    rest = stage.position.copy()
    stage.breaks = lambda m: setattr(
        m, "positions", array.array("d", np.tile(rest, (8, 1)).ravel())
    )
    stage.sends_chunks = True
    stage.wait_verdict(SafetyStatus.OK)
    stage.assert_fine()


def test_killed_buffer_leaves_the_robot_in_its_tail(stage):
    stage.start_and_move()
    stage.ros.stop(stage.buffer, signal.SIGKILL)
    stage.wait_rest()
    stage.wait_verdict(SafetyStatus.HOLD, "no command for")
    stage.assert_fine()


def test_everything_killed_the_tail_alone_stops_the_robot(stage):
    stage.start_and_move()
    for process in (stage.buffer, stage.guard):
        process.send_signal(signal.SIGKILL)
    for process in (stage.buffer, stage.guard):
        process.wait()
    stage.wait_rest()
    stage.assert_fine()


def nan(message):
    message.positions[9] = math.nan


def wrong_joints(message):
    message.joint_names = ["left_" + name for name in message.joint_names]


def jump(message):
    message.positions = array.array("d", [p + 1.0 for p in message.positions])


@pytest.mark.parametrize(
    ("breaks", "reason"),
    [
        (nan, "not finite"),
        (wrong_joints, "shoulder_pan_joint is missing"),
        (jump, "too far from the commanded state"),
    ],
)
def test_bad_chunks_are_refused_the_robot_rests_and_goes_on_when_they_end(stage, breaks, reason):
    stage.start_and_move()
    stage.breaks = breaks
    stage.ros.wait(lambda: reason in stage.stream[-1].reason, reason)
    stage.wait_rest()
    stage.wait_verdict(SafetyStatus.HOLD)
    rest = stage.position.copy()
    stage.breaks = lambda m: setattr(
        m, "positions", array.array("d", np.tile(rest, (8, 1)).ravel())
    )
    stage.wait_verdict(SafetyStatus.OK)
    stage.assert_fine()


def test_lost_joint_states_brake_and_come_back(stage):
    stage.start_and_move()
    stage.sends_joints = False
    stage.wait_verdict(SafetyStatus.HOLD, "joint_states")
    stage.wait_rest()
    stage.breaks = lambda m: setattr(
        m, "positions", array.array("d", np.tile(stage.position, (8, 1)).ravel())
    )
    stage.sends_joints = True
    stage.wait_verdict(SafetyStatus.OK)
    stage.assert_fine()


def test_stop_stays_until_reset_and_enable_holds(stage):
    stage.start_and_move()
    assert stage.ros.call(service("estop", Trigger), Trigger.Request()).success
    stage.wait_verdict(SafetyStatus.STOP)
    stage.wait_rest()
    assert stage.verdict().latched
    stage.breaks = lambda m: setattr(
        m, "positions", array.array("d", np.tile(stage.position, (8, 1)).ravel())
    )
    stage.ros.wait(
        lambda: stage.ros.call(service("reset", Trigger), Trigger.Request()).success, "a reset"
    )
    # Chunks flow again, and move nothing.
    stage.wait_verdict(SafetyStatus.HOLD, "disarmed: a STOP came")
    assert not stage.verdict().enabled
    on, off = SetBool.Request(data=True), SetBool.Request(data=False)
    assert stage.ros.call(service("enable", SetBool), on).success
    stage.wait_verdict(SafetyStatus.OK)
    assert stage.ros.call(service("enable", SetBool), off).success
    stage.wait_verdict(SafetyStatus.HOLD, "disarmed")
    assert not stage.verdict().enabled
    stage.assert_fine()


def test_a_stop_answers_when_the_robot_rests_and_a_topic_stops_too(stage):
    stage.start_and_move()
    answer = stage.ros.call(service("estop", Trigger), Trigger.Request())
    assert answer.success
    assert re.match(r"STOP is latched; at rest after \d\.\d\d s", answer.message)
    assert stage.speed < 1e-9
    stage.assert_fine()
    stage.ros.wait(
        lambda: stage.ros.call(service("reset", Trigger), Trigger.Request()).success, "a reset"
    )
    stage.ros.publisher(SAFETY_ESTOP).publish(Bool(data=True))
    stage.wait_verdict(SafetyStatus.STOP, "safety/estop is true")


def test_a_real_robot_starts_disarmed_and_enable_says_what_is_missing(stage):
    stage.sends_joints = False
    stage.start(safety_parameters=())
    enable, on = service("enable", SetBool), SetBool.Request(data=True)
    stage.wait_verdict(SafetyStatus.HOLD, "joint_states")
    answer = stage.ros.call(enable, on)
    assert not answer.success
    assert "never received" in answer.message
    stage.sends_joints = True
    stage.wait_verdict(SafetyStatus.HOLD, "disarmed: ~/enable arms")
    # Somebody else who could move the robot bars it, by name.
    other = rclpy.create_node("wild_commander", context=stage.ros.node.context)
    publisher = other.create_publisher(JointTrajectory, JOINT_TRAJECTORY.name, 1)
    stage.ros.wait(
        lambda: "wild_commander publishes on" in stage.ros.call(enable, on).message,
        "the other publisher to be named",
    )
    other.destroy_publisher(publisher)
    other.destroy_node()
    stage.ros.wait(lambda: stage.ros.call(enable, on).success, "arming")
    stage.wait_verdict(SafetyStatus.OK)
    stage.assert_fine()


def test_wrong_parameters_end_with_one_line(stage):
    for node, parameter, reason in (
        ("safety_node", "robot_file:=no_such_robot", "robot_file: 'no_such_robot': no such file"),
        ("buffer_node", "overlap:=average", "overlap: 'average': must be one of"),
        ("buffer_node", "servo_hertz:=100.0", "did you mean 'servo_hz'"),
    ):
        process = stage.ros.start(node, parameter)
        assert process.wait(timeout=60.0) == 2
        log = stage.ros.log(process)
        assert reason in log
        assert "Traceback" not in log


def test_a_second_publisher_of_joint_states_that_disagrees_holds_the_robot(ros):
    """As a joint_state_publisher that was started beside the robot's driver: all zeros."""
    stage = Stage(ros).start_and_move()
    other = ros.another_node("sliders")
    zeros = other.create_publisher(JOINT_STATES.type, JOINT_STATES.name, JOINT_STATES.qos)
    ros.wait(lambda: zeros.get_subscription_count() > 1, "buffer and safety to listen")

    def send():
        message = JointState(name=list(JOINT_NAMES), position=[0.0] * 6, velocity=[0.0] * 6)
        message.header.stamp = ros.node.get_clock().now().to_msg()
        zeros.publish(message)

    timer = ros.every(0.05, send)
    stage.wait_verdict(SafetyStatus.HOLD, "two publishers disagree")
    stage.wait_rest()
    reason = next(s.reason for s in stage.safety if "two publishers disagree" in s.reason)
    assert "from /sliders" in reason
    assert "from /bench" in reason
    timer.cancel()
    stage.wait_verdict(SafetyStatus.OK)
    stage.assert_fine()
