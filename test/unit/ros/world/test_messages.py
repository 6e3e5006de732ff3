"""A world's camera, a trajectory on the world's own time, and numbers that it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from hypothesis import given
from hypothesis import strategies as st
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_ros.robot.point_interpolation import MotionState
from physis_ros.robot.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
    TrajectoryPoint,
)
from physis_ros.world.codec import WorldContract
from physis_ros.world.messages import (
    LARGEST,
    camera_info,
    commanded_trajectory,
    wrong_number,
)


def test_the_camera_is_a_pinhole_in_the_middle_of_the_frame() -> None:
    contract = WorldContract(
        joint_names=("a",), frame_size=(48, 96), frames=3, step_s=0.1, camera_fovy_deg=90.0
    )
    info = camera_info(contract, stamp=Time(sec=7), frame_id="here")
    assert (info.width, info.height) == (96, 48)
    assert list(info.k) == pytest.approx([24.0, 0.0, 48.0, 0.0, 24.0, 24.0, 0.0, 0.0, 1.0])
    assert list(info.p[:3]) == list(info.k[:3])
    assert (info.header.stamp.sec, info.header.frame_id) == (7, "here")


@pytest.mark.parametrize(("stamp", "start_s"), [(Time(), None), (Time(sec=12), 2.0)])
def test_a_stamp_is_a_start_and_none_is_now(stamp: Time, start_s: float | None) -> None:
    point = JointTrajectoryPoint(positions=[1.0], velocities=[0.5])
    point.time_from_start.nanosec = 250_000_000
    message = JointTrajectory(joint_names=["a"], points=[point])
    message.header.stamp = stamp
    found = commanded_trajectory(message, lambda ns: (ns - 10_000_000_000) / 1e9)
    assert found.start_s == start_s
    assert found.joint_names == ("a",)
    assert found.points[0].time_from_start_s == pytest.approx(0.25)
    assert found.points[0].positions == (1.0,)
    assert found.points[0].velocities == (0.5,)


def trajectory_of(**values: tuple[float, ...]) -> Trajectory:
    given = {"positions": (0.1, 0.2), **values}
    return Trajectory(
        joint_names=("a", "b"),
        points=(
            TrajectoryPoint(time_from_start_s=0.1, positions=(0.0, 0.0), velocities=(0.0, 0.0)),
            TrajectoryPoint(time_from_start_s=0.2, **given),
        ),
    )


@pytest.mark.parametrize("field", ["positions", "velocities", "accelerations"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -1.1 * LARGEST])
def test_a_number_that_no_joint_can_follow_is_named(field: str, value: float) -> None:
    reason = wrong_number(trajectory_of(**{field: (0.0, value)}))
    assert reason == f"point 1: {field}[b]: {value:g}, must be within +-1e+06"


def test_a_value_too_many_is_named_by_its_place() -> None:
    reason = wrong_number(trajectory_of(velocities=(0.0, 0.0, math.nan)))
    assert reason is not None
    assert reason.startswith("point 1: velocities[2]: nan")


def test_numbers_that_a_joint_can_follow_pass() -> None:
    found = trajectory_of(velocities=(LARGEST, -LARGEST), accelerations=(0.0, 3.0))
    assert wrong_number(found) is None


any_number = st.floats(allow_nan=True, allow_infinity=True, width=64)
rows = st.lists(any_number, min_size=0, max_size=3).map(tuple)


@given(
    points=st.lists(st.tuples(st.integers(-(10**9), 2 * 10**9), rows, rows, rows), max_size=3),
    at=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=4),
)
def test_whatever_is_commanded_the_arm_of_a_world_stays_finite(
    points: list[Any], at: list[float]
) -> None:
    """Either the command is refused and the state stays, or every later state is finite."""
    rest = MotionState(position=np.array([0.3, -0.3]), velocity=np.zeros(2))
    controller = TrajectoryController(
        ControllerConfig(
            joint_names=("a", "b"),
            interpolate_from_desired_state=True,
            allow_nonzero_velocity_at_trajectory_end=True,
        ),
        rest,
    )
    command = Trajectory(
        joint_names=("a", "b"),
        points=tuple(
            TrajectoryPoint(
                time_from_start_s=time_ns / 1e9, positions=p, velocities=v, accelerations=a
            )
            for time_ns, p, v, a in points
        ),
    )
    refused = wrong_number(command) or controller.accept(command, 0.0)
    for now_s in sorted(at):
        position = controller.update(now_s, rest).state.position
        assert np.isfinite(position.astype(np.float32)).all()
        if refused:
            assert position.tolist() == [0.3, -0.3]
