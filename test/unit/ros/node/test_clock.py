"""Jumps of ROS time are seen; pauses, slow and fast simulations are not jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_ros.node.clock import LEAST_CLOCK_HZ, ClockJumpWatch, ClockSteps


def watch(simulated: bool) -> ClockJumpWatch:
    return ClockJumpWatch(threshold_s=1.0, simulated=simulated)


@given(st.lists(st.floats(0.0, 0.5), max_size=30), st.booleans())
def test_time_that_runs_with_the_steady_clock_never_jumps(
    steps_s: list[float], simulated: bool
) -> None:
    clock, now_s = watch(simulated), 5.0
    for step_s in steps_s:
        now_s += step_s
        assert clock.look(ros_ns=round(now_s * 1e9), steady_s=now_s) is None


def test_a_wall_clock_that_is_set_has_jumped_either_way() -> None:
    clock = watch(simulated=False)
    assert clock.look(ros_ns=100 * 10**9, steady_s=1.0) is None
    forward = clock.look(ros_ns=105 * 10**9, steady_s=2.0)
    assert forward is not None
    assert forward.delta_s == pytest.approx(4.0)
    back = clock.look(ros_ns=100 * 10**9, steady_s=3.0)
    assert back is not None
    assert back.delta_s == pytest.approx(-6.0)
    assert clock.look(ros_ns=101 * 10**9, steady_s=4.0) is None


def test_simulated_time_may_pause_and_race() -> None:
    clock = watch(simulated=True)
    assert clock.look(ros_ns=0, steady_s=0.0) is None
    assert clock.look(ros_ns=500 * 10**9, steady_s=1.0) is None, "the first /clock is no jump"
    assert clock.look(ros_ns=500 * 10**9, steady_s=60.0) is None, "paused"
    assert clock.look(ros_ns=501 * 10**9, steady_s=60.1) is None, "ten times real time"
    assert clock.look(ros_ns=561 * 10**9, steady_s=60.2) is not None
    assert clock.look(ros_ns=560 * 10**9, steady_s=60.3) is not None
    assert clock.look(ros_ns=10**9, steady_s=60.4) is not None


def test_simulated_time_that_stands_still_is_said_and_is_no_jump():
    watch = ClockJumpWatch(threshold_s=1.0, simulated=True)
    assert watch.standstill(0.0) == ""
    assert watch.look(ros_ns=0, steady_s=10.0) is None
    assert watch.standstill(12.0) == "no /clock for 2.0 s"
    for steady_s in (13.0, 13.5, 16.0):
        assert watch.look(ros_ns=5 * 10**9, steady_s=steady_s) is None
    assert watch.standstill(14.0) == ""
    assert watch.standstill(16.0) == "/clock stands still at 5.000 for 3.0 s"
    assert watch.look(ros_ns=6 * 10**9, steady_s=17.0) is None
    assert watch.standstill(17.5) == ""


def test_wall_time_never_stands_still():
    watch = ClockJumpWatch(threshold_s=1.0, simulated=False)
    watch.look(ros_ns=5 * 10**9, steady_s=10.0)
    assert watch.standstill(20.0) == ""


@given(rate_hz=st.floats(1.0, 190.0), factor=st.floats(0.3, 3.0))
def test_a_clock_is_named_where_it_is_coarser_than_the_least_rate(
    rate_hz: float, factor: float
) -> None:
    """Steps count in simulated time: a slow simulator with a fine clock is no coarse clock."""
    steps = ClockSteps(memory_s=60.0)
    step_s, now_s = 1.0 / rate_hz, 10.0
    assert steps.step_s(now_s) == 0.0
    for _ in range(10):
        now_s += step_s / factor
        steps.add(step_s, now_s)
    assert steps.step_s(now_s) == pytest.approx(step_s)
    assert bool(steps.fault(now_s)) == (step_s > 1.1 / LEAST_CLOCK_HZ)


def test_a_coarse_clock_is_named_with_its_step_and_rate() -> None:
    steps = ClockSteps()
    for tick in range(5):
        steps.add(0.1, 0.1 * tick)
    assert steps.fault(0.5) == (
        "/clock advances in steps of 0.100 s (10.0 Hz); at least 20 Hz is needed"
    )
    assert steps.fault(60.0) == ""


def test_one_jump_among_fine_steps_makes_no_coarse_clock() -> None:
    steps = ClockSteps()
    for tick in range(10):
        steps.add(60.0 if tick == 5 else 0.01, 0.01 * tick)
    assert steps.step_s(0.1) == pytest.approx(0.01)
    assert steps.fault(0.1) == ""
