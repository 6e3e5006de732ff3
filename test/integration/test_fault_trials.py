"""A process of a robot does not run for two seconds, or its camera is lost: how it ends.

One running robot serves all trials, one after the other: each begins with an arm that moves, and
ends with one that moves again. The arm's own record is the judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arm_stack import LATE_S, ArmStack
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from restless_model import restless_model

from physis_ros.msg import StreamStatus
from physis_ros.node.interfaces import Service
from physis_ros.node.time_messages import time_to_ns

pytestmark = [pytest.mark.integration, pytest.mark.timed]
STOPPED_S = 2.0
FEW_TICKS_S = 0.05
SET_PARAMETERS = Service(name="robot_sim_node/set_parameters", type=SetParameters)


@pytest.fixture(scope="module")
def running(shared_ros: Any, tmp_path_factory: pytest.TempPathFactory) -> ArmStack:
    folder: Path = tmp_path_factory.mktemp("arm")
    return ArmStack(shared_ros, restless_model(folder / "model.safetensors"), folder).start()


@pytest.fixture
def arm(running: ArmStack) -> Iterator[ArmStack]:
    running.wait_moving()
    yield running
    # The cause is gone: it goes on by itself, and has passed no limit at any tick.
    running.wait_moving()
    running.assert_no_limit_passed()


def set_camera_fault(arm: ArmStack, fault: str) -> None:
    parameter = Parameter("camera_fault", value=fault).to_parameter_msg()
    answer = arm.ros.call(SET_PARAMETERS, SetParameters.Request(parameters=[parameter]))
    assert answer.results[0].successful


def test_an_engine_that_stops_running(arm: ArmStack) -> None:
    with arm.stopped("engine_node", STOPPED_S) as fault_s:
        rest = arm.wait_rest(fault_s)
        arm.wait_held()
        arm.wait_stream(StreamStatus.UNDERRUN, "no chunk for")
        # It plays the points that it has, and brakes.
        last_s = arm.chunks_end_s() + LATE_S + FEW_TICKS_S
        assert rest.at_s <= last_s + rest.braking_s


def test_a_buffer_that_stops_running(arm: ArmStack) -> None:
    with arm.stopped("buffer_node", STOPPED_S) as fault_s:
        rest = arm.wait_rest(fault_s)
        arm.wait_held()
        last_s = arm.chunks_end_s(until_s=fault_s) + LATE_S + FEW_TICKS_S
        assert rest.at_s <= last_s + rest.braking_s


def test_a_safety_node_that_stops_running(arm: ArmStack) -> None:
    arm.ros.wait(lambda: arm.safety, "a safety status")
    lost = arm.safety[-1].lost_ticks
    with arm.stopped("safety_node", STOPPED_S) as fault_s:
        rest = arm.wait_rest(fault_s)
        # Nobody is left to brake: what was forwarded ends at rest by itself.
        assert rest.at_s <= arm.forwarded_end_s() + FEW_TICKS_S
        arm.safety.clear()
    # It could not say so; now it does.
    arm.ros.wait(
        lambda: any(one.lost_ticks >= lost + 300 for one in arm.safety), "the lost ticks to be told"
    )


def test_an_observation_node_that_stops_running(arm: ArmStack) -> None:
    with arm.stopped("observation_node", STOPPED_S) as fault_s:
        rest = arm.wait_rest(fault_s)
        arm.wait_held()
        arm.wait_stream(StreamStatus.UNDERRUN, "no chunk for")
        assert_blind(arm, fault_s)
        assert rest.at_s <= arm.chunks_end_s() + LATE_S + FEW_TICKS_S + rest.braking_s


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("loss", "camera/front: silent for"),
        ("freeze", "camera/front: frozen: it repeats one stamp"),
    ],
)
def test_a_camera_that_is_lost(arm: ArmStack, fault: str, reason: str) -> None:
    set_camera_fault(arm, fault)
    fault_s = arm.now_s()
    rest = arm.wait_rest(fault_s)
    arm.ros.wait_for_diagnosis("observation_node: observation", reason)
    arm.wait_held()
    arm.wait_stream(StreamStatus.UNDERRUN, "no chunk for")
    assert_blind(arm, fault_s)
    assert rest.at_s <= arm.chunks_end_s() + LATE_S + FEW_TICKS_S + rest.braking_s
    set_camera_fault(arm, "none")


def assert_blind(arm: ArmStack, fault_s: float) -> None:
    """Nothing was made up: every chunk stands on what was seen before the fault."""
    newest_s = max(arm.steady_s(chunk.capture_newest) for chunk in arm.chunks)
    assert newest_s <= fault_s
    assert all(time_to_ns(chunk.capture_oldest) for chunk in arm.chunks)
