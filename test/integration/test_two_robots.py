"""`physis up two_robots`: two arms in two namespaces, one engine; what one suffers is its own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from arm_stack import ENGINE, ArmStack
from restless_model import restless_model
from stack_up import PATIENCE_S, Up

from physis_lab.arm.limits import JOINT_NAMES
from physis_ros.msg import Observation, StreamStatus
from physis_ros.node.image_messages import rgb_to_image
from physis_ros.node.interfaces import OBSERVATION, in_namespace
from physis_ros.node.time_messages import ns_to_time

pytestmark = [pytest.mark.integration, pytest.mark.timed]
ROBOTS = ("left", "right")


def settings(model: Path, folder: Path) -> list[str]:
    wanted = [
        f"engine_node.model={model}",
        *(f"engine_node.{word.replace(':=', '=')}" for word in ENGINE),
        f"observation_node.model={model}",
        "robot_sim_node.width=64",
        "robot_sim_node.height=64",
        "robot_sim_node.camera_hz=20.0",
        *(f"{robot}/robot_sim_node.record_path={folder / robot}" for robot in ROBOTS),
    ]
    return [word for one in wanted for word in ("--set", one)]


@pytest.fixture(scope="module")
def up(shared_ros: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder: Path = tmp_path_factory.mktemp("up")
    model = restless_model(folder / "model.safetensors")
    running = Up(shared_ros.domain, folder, "two_robots", *settings(model, folder))
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def both(shared_ros: Any, up: Up) -> dict[str, ArmStack]:
    """The arms of two robots that others started, looked at."""
    folder = up.log.parent
    return {
        robot: ArmStack(shared_ros, folder, folder / robot, namespace=robot) for robot in ROBOTS
    }


@pytest.fixture
def arms(both: dict[str, ArmStack]) -> Iterator[tuple[ArmStack, ArmStack]]:
    for arm in both.values():
        arm.wait_moving()
    yield both["left"], both["right"]
    for arm in both.values():
        arm.wait_moving()
        arm.assert_no_limit_passed()


def test_each_arm_has_the_chunks_of_its_own_stream(arms: tuple[ArmStack, ArmStack], up: Up) -> None:
    for arm, robot in zip(arms, ROBOTS):
        assert {chunk.stream_id for chunk in arm.chunks} == {robot}
        assert up.node("safety_node", robot)
    assert up.node("engine_node")
    assert not up.node("engine_node", "left")


def test_one_buffer_that_dies_does_not_disturb_the_other_robot(
    arms: tuple[ArmStack, ArmStack], up: Up
) -> None:
    left, right = arms
    epoch = right.chunks[-1].epoch
    killed = up.node("buffer_node", "left")
    assert killed is not None
    fault_s = left.now_s()
    killed.kill()
    left.wait_rest(fault_s)
    left.wait_held()
    right.wait_moving()
    assert right.chunks[-1].epoch == epoch
    # It comes back by itself.
    left.wait_moving()
    again = up.node("buffer_node", "left")
    assert again is not None and again.pid != killed.pid


def test_bad_observations_of_one_robot_end_its_stream_alone(
    arms: tuple[ArmStack, ArmStack], up: Up
) -> None:
    left, right = arms
    observer = up.node("observation_node", "left")
    assert observer is not None
    left.processes["observation_node"] = observer
    out = left.ros.publisher(in_namespace(OBSERVATION, "left"))
    with left.stopped("observation_node", 0.0) as fault_s:
        timer = left.ros.every(0.05, lambda: out.publish(bad_observation(left)))
        left.ros.wait_for_diagnosis("stream left", "joint_names: ")
        left.wait_rest(fault_s)
        left.wait_stream(StreamStatus.UNDERRUN, "no chunk for")
        epoch = right.chunks[-1].epoch
        right.wait_moving()
        assert right.chunks[-1].epoch == epoch
        timer.cancel()


def bad_observation(arm: ArmStack) -> Observation:
    """It has an image of the right size and joints of another robot."""
    now_ns = arm.ros.node.get_clock().now().nanoseconds
    message = Observation(stream_id="left", observation_id=1 << 20)
    for stamp in ("capture_oldest", "capture_newest", "receipt"):
        setattr(message, stamp, ns_to_time(now_ns))
    message.camera_names = ["front"]
    image = np.zeros((32, 32, 3), np.uint8)
    message.images = [rgb_to_image(image, stamp=message.receipt, frame_id="front")]
    message.joint_names = [f"other_{name}" for name in JOINT_NAMES]
    message.positions = [0.0] * len(JOINT_NAMES)
    return message


def test_one_safety_node_that_dies_ends_its_own_robot_alone(
    both: dict[str, ArmStack], up: Up
) -> None:
    """The last test of this stack: the left robot does not come back."""
    left, right = both["left"], both["right"]
    for arm in (left, right):
        arm.wait_moving()
    epoch = right.chunks[-1].epoch
    killed, buffer = up.node("safety_node", "left"), up.node("buffer_node", "left")
    assert killed is not None and buffer is not None
    fault_s = left.now_s()
    killed.kill()
    # Nobody is left to say so; the arm plays the tail of what was forwarded to it.
    left.wait_rest(fault_s)
    psutil.wait_procs([buffer], timeout=PATIENCE_S)
    right.wait_moving()
    assert right.chunks[-1].epoch == epoch
    assert up.node("buffer_node", "left") is None
    assert up.node("robot_sim_node", "left") is not None
    for arm in (left, right):
        arm.assert_no_limit_passed()
    up.process.send_signal(signal.SIGINT)
    assert up.wait() == 1, up.text()
    assert "left/safety_node was ended by SIGKILL" in up.outcome()["lost_robots"]["left"]
