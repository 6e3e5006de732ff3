"""Stamps survive the way there and back; steady instants find their place in ROS time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.node.time_messages import (
    SteadyToRos,
    duration_to_seconds,
    ns_to_time,
    seconds_to_duration,
    time_to_ns,
)


@given(st.integers(0, (2**31 - 1) * 10**9))
def test_nanoseconds_survive(stamp_ns: int) -> None:
    assert time_to_ns(ns_to_time(stamp_ns)) == stamp_ns


@pytest.mark.parametrize("stamp_ns", [-1, 2**31 * 10**9])
def test_what_a_stamp_can_not_hold_is_refused(stamp_ns: int) -> None:
    with pytest.raises(UserError, match="does not fit"):
        ns_to_time(stamp_ns)


@given(st.floats(-1e6, 1e6))
def test_durations_survive_to_the_nanosecond(duration_s: float) -> None:
    assert abs(duration_to_seconds(seconds_to_duration(duration_s)) - duration_s) < 2e-9


def test_steady_to_ros() -> None:
    clock = SteadyToRos(ros_ns=1_000_000_000_000, steady_s=50.0)
    assert clock.ros_ns_at(50.0) == 1_000_000_000_000
    assert clock.ros_ns_at(49.9) == 999_900_000_000
