"""Where the robot is: commanded, measured, or on another motion than the plan."""

from __future__ import annotations

import math

import numpy as np

from physis_ros.timeline.robot_state import RobotState

STILL = np.zeros(2)
SLOW = 1e-3


def looks(place: RobotState, apart: float, velocity: float, times: int) -> list[bool]:
    moving = np.array([0.0, velocity])
    commanded = np.array([0.0, apart])
    return [place.differs_from_plan(STILL, STILL, commanded, moving) for _ in range(times)]


def test_only_what_lasts_is_another_motion() -> None:
    place = RobotState(("a", "b"))
    assert looks(place, 0.05, SLOW, 2) == [False, False]
    assert looks(place, 0.01, SLOW, 1) == [False]
    assert looks(place, 0.05, SLOW, 4) == [False, False, True, True]
    place.rebased()
    assert looks(place, 0.05, SLOW, 1) == [False]


def test_an_arm_that_rests_elsewhere_is_followed_at_once() -> None:
    place = RobotState(("a", "b"))
    assert looks(place, 0.0005, 0.0, 3) == [False, False, False]
    assert looks(place, 0.002, 0.0, 1) == [True]


def test_a_fast_joint_may_be_further_off() -> None:
    assert not any(looks(RobotState(("a", "b")), 0.09, 1.0, 5))
    assert any(looks(RobotState(("a", "b")), 0.11, 1.0, 5))


def test_measured_counts_whole_late_and_only_where_nobody_commands() -> None:
    place = RobotState(("a", "b"))
    place.begin(10.0)
    place.measured(["gripper", "b"], [9.0, 2.0])
    assert place.measured_start(20.0) is None
    place.measured(["a", "b"], [math.nan])
    assert place.measured_start(20.0) is None
    place.measured(["b", "a"], [2.5, 1.0])
    assert place.measured_start(10.5) is None
    found = place.measured_start(20.0)
    assert found is not None
    assert found.tolist() == [1.0, 2.5]
    place.commanded()
    assert place.measured_start(20.0) is None
