"""Every node on a simulator's /clock that jumps, pauses and goes on; and stamps of the wall's time.

One running robot serves all trials, one after the other; the arm's own record is the judge. The
simulated arm moves on the steady clock, as a robot does whose simulator is not asked.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arm_stack import ArmStack
from clock_source import BEGIN_S
from restless_model import STEP_S, restless_model
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES
from physis_ros.msg import ActionChunk, SafetyStatus, StreamStatus
from physis_ros.node.clock import LEAST_CLOCK_HZ
from physis_ros.node.interfaces import SAFETY_TELEOP_IN, Service
from physis_ros.node.time_messages import seconds_to_duration, time_to_ns

pytestmark = [pytest.mark.integration, pytest.mark.timed]
AN_HOUR_S = 3600.0


class ClockedArm:
    def __init__(self, ros: Any, folder: Path) -> None:
        self.clock = ros.start_file(Path(__file__).with_name("clock_source.py"), talks=True)
        self.arm = ArmStack(
            ros, restless_model(folder / "model.safetensors"), folder, use_sim_time=True
        ).start()

    def tell(self, line: str) -> None:
        self.clock.stdin.write(f"{line}\n".encode())
        self.clock.stdin.flush()


@pytest.fixture(scope="module")
def running(shared_ros: Any, tmp_path_factory: pytest.TempPathFactory) -> ClockedArm:
    return ClockedArm(shared_ros, tmp_path_factory.mktemp("arm"))


@pytest.fixture
def clocked(running: ClockedArm) -> Iterator[ClockedArm]:
    running.arm.wait_moving()
    yield running
    running.tell("resume")
    running.arm.wait_moving()
    running.arm.assert_no_limit_passed()


def test_what_leaves_is_stamped_in_simulated_time(clocked: ClockedArm) -> None:
    arm = clocked.arm
    arm.ros.wait(lambda: arm.safety and arm.stream, "a status of each")
    for message in (arm.chunks[-1], arm.forwarded[-1], arm.safety[-1], arm.stream[-1]):
        assert BEGIN_S <= time_to_ns(message.header.stamp) * 1e-9 < BEGIN_S + AN_HOUR_S
    chunk = arm.chunks[-1]
    assert time_to_ns(chunk.capture_oldest) * 1e-9 >= BEGIN_S


@pytest.mark.parametrize("jump_s", [-5.0, 60.0])
def test_a_clock_that_jumps_raises_the_epoch_and_the_arm_goes_on(
    clocked: ClockedArm, jump_s: float
) -> None:
    arm = clocked.arm
    epoch, last_s = arm.chunks[-1].epoch, time_to_ns(arm.chunks[-1].header.stamp) * 1e-9
    clocked.tell(f"jump {jump_s}")

    def is_new(chunk: ActionChunk) -> bool:
        captured_s = time_to_ns(chunk.capture_oldest) * 1e-9
        on_new_time = captured_s < last_s if jump_s < 0.0 else captured_s > last_s + jump_s / 2
        return bool(on_new_time and chunk.epoch > epoch)

    # The engine may hear of the jump before observation_node does, and begin the epoch with what
    # was seen before it: the buffer refuses that chunk by its stamps.
    arm.ros.wait(lambda: is_new(arm.chunks[-1]), "a new epoch that stands on the new time")
    assert arm.chunks[-1].epoch == epoch + 1
    way = "-" if jump_s < 0.0 else "+"
    arm.ros.wait(
        lambda: any(f"ROS time jumped by {way}" in one.reason for one in arm.safety),
        "safety to say that time jumped",
    )
    arm.wait_moving()
    assert arm.chunks[-1].epoch == epoch + 1
    for name in ("buffer_node", "observation_node", "engine_node", "safety_node"):
        assert "ROS time jumped by" in arm.ros.log(arm.processes[name])


def test_a_clock_that_pauses_holds_the_arm_and_stalls_no_timer(clocked: ClockedArm) -> None:
    arm = clocked.arm
    epoch = arm.chunks[-1].epoch
    fault_s = arm.now_s()
    clocked.tell("pause")
    arm.wait_rest(fault_s)
    arm.ros.wait(
        lambda: any(
            one.verdict == SafetyStatus.HOLD and "the stamp does not advance" in one.reason
            for one in arm.safety
        ),
        "safety to name the stamps that stand still",
    )
    arm.ros.wait_for_diagnosis("observation_node: observation", "frozen: it repeats one stamp")
    arm.wait_stream(StreamStatus.UNDERRUN, "/clock stands still at")
    # Every timer goes on: diagnoses and statuses come, all with the stamp at which time stands.
    for name in arm.names:
        arm.ros.wait_for_diagnosis(f"{name}: node", "/clock stands still at")
    arm.safety.clear()
    arm.stream.clear()
    arm.ros.wait(lambda: len(arm.safety) > 5 and len(arm.stream) > 2, "statuses meanwhile")
    stamps = {time_to_ns(one.header.stamp) for one in arm.safety}
    assert len(stamps) == 1
    clocked.tell("resume")
    arm.wait_moving()
    # A pause is no jump.
    assert arm.chunks[-1].epoch == epoch


def test_a_command_with_a_stamp_of_wall_time_is_refused_with_the_reason(
    clocked: ClockedArm,
) -> None:
    arm = clocked.arm
    message = JointTrajectory(joint_names=list(JOINT_NAMES))
    # The test's own node is on wall time, as a teleoperator's without use_sim_time.
    message.header.stamp = arm.ros.node.get_clock().now().to_msg()
    message.points = [
        JointTrajectoryPoint(
            positions=list(HOME_RAD),
            velocities=[0.0] * len(JOINT_NAMES),
            time_from_start=seconds_to_duration(1.0),
        )
    ]
    teleop = arm.ros.publisher(SAFETY_TELEOP_IN)
    rejected = "teleop: rejected: age: it starts"
    timer = arm.ros.every(0.05, lambda: teleop.publish(message))
    arm.ros.wait(
        lambda: any(
            one.verdict == SafetyStatus.HOLD
            and one.reason.startswith(rejected)
            and "by its stamp, limit 0.5 s" in one.reason
            for one in arm.safety
        ),
        rejected,
    )
    timer.cancel()
    # Also a message that is refused takes control, until it is handed back.
    hand_back = Service(name="safety_node/hand_back", type=Trigger)
    assert arm.ros.call(hand_back, Trigger.Request()).success


def test_a_chunk_with_stamps_of_wall_time_is_refused_with_the_reason(clocked: ClockedArm) -> None:
    arm = clocked.arm
    chunks = arm.ros.chunk_publisher()
    arm.ros.wait(lambda: chunks.get_subscription_count() >= 2, "buffer and test to listen")

    def send() -> None:
        like = arm.chunks[-1]
        wall = arm.ros.node.get_clock().now().to_msg()
        # Ahead of the engine's: the chunks up to this id are refused as older ones afterwards.
        message = ActionChunk(
            stream_id=like.stream_id,
            epoch=like.epoch,
            chunk_id=like.chunk_id + 3,
            joint_names=JOINT_NAMES,
        )
        for stamp in ("capture_oldest", "capture_newest", "receipt", "entry", "deadline", "start"):
            setattr(message, stamp, wall)
        message.header.stamp = wall
        message.step = seconds_to_duration(STEP_S)
        message.positions = array.array("d", [*HOME_RAD] * 8)
        chunks.publish(message)

    # More than once: the log tells one refusal a second, and another may have come before.
    timer = arm.ros.every(1.5, send)
    log = arm.processes["buffer_node"]
    arm.ros.wait(
        lambda: "its stamps do not belong to the present time: captured" in arm.ros.log(log),
        "the buffer to refuse it",
    )
    timer.cancel()


@pytest.mark.parametrize("hz", [LEAST_CLOCK_HZ, 10.0])
def test_a_coarse_clock_serves_from_its_least_rate_on_and_is_named_below(
    ros: Any, tmp_path: Path, hz: float
) -> None:
    ros.start_file(Path(__file__).with_name("clock_source.py"), str(hz), talks=True)
    model = restless_model(tmp_path / "model.safetensors")
    arm = ArmStack(ros, model, tmp_path, use_sim_time=True).start()
    ros.wait(lambda: len(arm.chunks) > 20, "chunks")
    if hz < LEAST_CLOCK_HZ:
        ros.wait(
            lambda: any(
                one.verdict == SafetyStatus.HOLD and "/clock advances in steps" in one.reason
                for one in arm.safety
            ),
            "safety to name the clock",
        )
    else:
        arm.wait_moving()
    arm.assert_no_limit_passed()
