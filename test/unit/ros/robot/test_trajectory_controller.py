"""The emulated controller keeps the rules of the real one, the unfriendly ones included."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.robot.point_interpolation import MotionState, interpolate
from physis_ros.robot.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
    TrajectoryPoint,
    refusal,
)

NAMES = ("a", "b")
CONFIG = ControllerConfig(joint_names=NAMES)


def at(*position: float) -> MotionState:
    return MotionState(position=np.array(position), velocity=np.zeros(len(position)))


def point(time_s: float, *positions: float, velocities: tuple[float, ...] = ()) -> TrajectoryPoint:
    return TrajectoryPoint(time_from_start_s=time_s, positions=positions, velocities=velocities)


def line(*points: TrajectoryPoint, start_s: float | None = None) -> Trajectory:
    return Trajectory(joint_names=NAMES, points=points, start_s=start_s)


GOOD = line(point(0.1, 1.0, 2.0), point(0.2, 2.0, 4.0))


def test_good_trajectory_is_taken() -> None:
    assert refusal(GOOD, CONFIG, 5.0) is None


@pytest.mark.parametrize(
    ("trajectory", "word"),
    [
        (replace(GOOD, joint_names=()), "empty"),
        (replace(GOOD, points=()), "points"),
        (replace(GOOD, joint_names=("a", "c")), "'c'"),
        (replace(GOOD, joint_names=("a", "a")), "twice"),
        (Trajectory(joint_names=("a",), points=(point(0.1, 1.0),)), "'b' is missing"),
        (line(point(0.1, 1.0)), "1 positions"),
        (line(point(0.1, 1.0, 1.0, velocities=(0.0,))), "1 velocities"),
        (line(point(0.1, 1.0, 1.0), point(0.1, 1.0, 1.0)), "does not increase"),
        (line(point(-0.1, 1.0, 1.0)), "does not increase"),
        (line(point(0.1, 1.0, 1.0, velocities=(0.0, 0.1))), "last point's velocity"),
        (replace(GOOD, start_s=4.7), "ended"),
        (line(replace(point(0.1, 1.0, 1.0), effort=(1.0, 1.0))), "effort"),
        (line(replace(point(0.1, 1.0, 1.0), accelerations=(1.0,))), "1 accelerations"),
    ],
)
def test_refusals_say_why(trajectory: Trajectory, word: str) -> None:
    reason = refusal(trajectory, CONFIG, 5.0)
    assert reason is not None
    assert word in reason


def test_refused_trajectory_leaves_the_running_one_alone() -> None:
    controller = TrajectoryController(CONFIG, at(0.0, 0.0))
    assert controller.accept(GOOD, 0.0) is None
    controller.update(0.0, at(0.0, 0.0))
    assert controller.accept(replace(GOOD, points=()), 0.05) is not None
    assert controller.update(0.2, at(0.0, 0.0)).state.position == pytest.approx([2.0, 4.0])


def test_allowed_by_option() -> None:
    moving = line(point(0.1, 1.0, 1.0, velocities=(0.0, 0.1)))
    lenient = replace(CONFIG, allow_nonzero_velocity_at_trajectory_end=True)
    assert refusal(moving, lenient, 0.0) is None
    partial = Trajectory(joint_names=("b",), points=(point(0.1, 1.0),))
    config = replace(CONFIG, allow_partial_joints_goal=True)
    controller = TrajectoryController(config, at(7.0, 0.0))
    assert controller.accept(partial, 0.0) is None
    controller.update(0.0, at(7.0, 0.0))
    assert controller.update(0.1, at(7.0, 0.0)).state.position == pytest.approx([7.0, 1.0])


def test_nan_and_limits_are_not_looked_at() -> None:
    assert refusal(line(point(0.1, math.nan, 1e6)), CONFIG, 0.0) is None


def test_names_in_any_order() -> None:
    controller = TrajectoryController(CONFIG, at(0.0, 0.0))
    swapped = Trajectory(joint_names=("b", "a"), points=(point(0.1, 2.0, 1.0),))
    assert controller.accept(swapped, 0.0) is None
    controller.update(0.0, at(0.0, 0.0))
    assert controller.update(0.3, at(0.0, 0.0)).state.position == pytest.approx([1.0, 2.0])


def test_stamp_zero_starts_at_the_first_tick_that_plays_it() -> None:
    controller = TrajectoryController(CONFIG, at(0.0, 0.0))
    controller.accept(GOOD, 3.0)
    assert controller.update(5.0, at(0.0, 0.0)).state.position == pytest.approx([0.0, 0.0])
    assert controller.update(5.05, at(0.0, 0.0)).state.position == pytest.approx([0.5, 1.0])
    assert controller.update(5.15, at(0.0, 0.0)).state.position == pytest.approx([1.5, 3.0])


def test_future_start_is_waited_for() -> None:
    controller = TrajectoryController(CONFIG, at(0.0, 0.0))
    controller.accept(replace(GOOD, start_s=1.0), 0.0)
    assert controller.update(0.0, at(0.0, 0.0)).state.position == pytest.approx([0.0, 0.0])
    # On the way from where it was to the first point, which is due at 1.1 s.
    assert controller.update(0.55, at(0.0, 0.0)).state.position == pytest.approx([0.5, 1.0])


@pytest.mark.parametrize(("past_start", "expected"), [("step", 1.5), ("shift", 0.0)])
def test_past_start(past_start: str, expected: float) -> None:
    config = replace(CONFIG, past_start=past_start)  # type: ignore[arg-type]
    controller = TrajectoryController(config, at(0.0, 0.0))
    controller.accept(replace(GOOD, start_s=4.85), 5.0)
    assert controller.update(5.0, at(0.0, 0.0)).state.position[0] == pytest.approx(expected)


def test_restart_from_measured_steps_back_and_from_desired_does_not() -> None:
    for desired, expected in ((False, 0.3), (True, 0.5)):
        config = replace(CONFIG, interpolate_from_desired_state=desired)
        controller = TrajectoryController(config, at(0.0, 0.0))
        controller.accept(line(point(0.1, 1.0, 1.0)), 0.0)
        controller.update(0.0, at(0.0, 0.0))
        before = controller.update(0.05, at(0.3, 0.3)).state.position[0]
        assert before == pytest.approx(0.5)
        controller.accept(line(point(0.1, 1.0, 1.0)), 0.05)
        after = controller.update(0.05 + 1e-9, at(0.3, 0.3)).state.position[0]
        assert after == pytest.approx(expected, abs=1e-6)


def test_holds_after_the_last_point_with_its_velocity() -> None:
    config = replace(CONFIG, allow_nonzero_velocity_at_trajectory_end=True)
    controller = TrajectoryController(config, at(0.0, 0.0))
    controller.accept(line(point(0.1, 1.0, 1.0, velocities=(0.5, 0.5))), 0.0)
    controller.update(0.0, at(0.0, 0.0))
    command = controller.update(9.0, at(0.9, 0.9))
    assert command.holding
    assert command.state.position == pytest.approx([1.0, 1.0])
    assert command.state.velocity == pytest.approx([0.5, 0.5])


def test_cmd_timeout_holds_the_measured_position() -> None:
    controller = TrajectoryController(replace(CONFIG, cmd_timeout_s=0.5), at(0.0, 0.0))
    controller.accept(GOOD, 0.0)
    controller.update(0.0, at(0.0, 0.0))
    assert controller.update(0.6, at(1.9, 3.9)).state.position == pytest.approx([2.0, 4.0])
    assert controller.update(0.8, at(1.9, 3.9)).state.position == pytest.approx([1.9, 3.9])
    assert controller.update(0.9, at(1.7, 3.7)).state.position == pytest.approx([1.9, 3.9])


def test_holds_before_anything_came() -> None:
    controller = TrajectoryController(CONFIG, at(0.4, 0.5))
    command = controller.update(10.0, at(0.4, 0.4))
    assert command.holding
    assert command.state.position == pytest.approx([0.4, 0.5])


@pytest.mark.parametrize(
    "bad",
    [
        {"joint_names": ()},
        {"joint_names": ("a", "a")},
        {"cmd_timeout_s": -1.0},
        {"cmd_timeout_s": math.nan},
        {"past_start": "jump"},
    ],
)
def test_bad_config_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UserError):
        replace(CONFIG, **bad)


number = st.floats(-3.0, 3.0)


@st.composite
def states(draw: st.DrawFn, order: int) -> MotionState:
    return MotionState(
        position=np.array([draw(number)]),
        velocity=np.array([draw(number)]) if order >= 1 else None,
        acceleration=np.array([draw(number)]) if order >= 2 else None,
    )


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 2), st.floats(0.02, 2.0))
def test_segment_meets_both_ends(data: st.DataObject, order: int, span_s: float) -> None:
    a, b = data.draw(states(order)), data.draw(states(order))
    for end, time_s in ((a, 10.0), (b, 10.0 + span_s)):
        got = interpolate(10.0, a, 10.0 + span_s, b, time_s)
        assert got.position == pytest.approx(end.position, abs=1e-6)
        if end.velocity is not None:
            assert got.velocity == pytest.approx(end.velocity, abs=1e-5)
        if end.acceleration is not None:
            assert got.acceleration == pytest.approx(end.acceleration, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 2), st.floats(0.1, 0.9))
def test_velocity_is_the_slope_of_position(data: st.DataObject, order: int, share: float) -> None:
    a, b = data.draw(states(order)), data.draw(states(order))
    h = 1e-5
    low, mid, high = (interpolate(0.0, a, 1.0, b, share + k * h) for k in (-1, 0, 1))
    assert mid.velocity is not None
    assert mid.velocity == pytest.approx((high.position - low.position) / (2 * h), abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 0.3), number, number), min_size=1, max_size=6),
    st.floats(0.0, 0.02),
)
def test_plays_every_point_at_its_time_and_rests_at_the_last(
    steps: list[tuple[float, float, float]], late_s: float
) -> None:
    times = np.cumsum([s[0] for s in steps])
    points = tuple(point(float(t), s[1], s[2]) for t, s in zip(times, steps, strict=True))
    controller = TrajectoryController(CONFIG, at(0.0, 0.0))
    assert controller.accept(line(*points), 1.0) is None
    begun_s = 1.0 + late_s
    controller.update(begun_s, at(0.0, 0.0))
    for p in points:
        got = controller.update(begun_s + p.time_from_start_s, at(0.0, 0.0))
        assert got.state.position == pytest.approx(p.positions, abs=1e-9)
    assert controller.update(begun_s + 100.0, at(0.0, 0.0)).state.position == pytest.approx(
        points[-1].positions
    )
