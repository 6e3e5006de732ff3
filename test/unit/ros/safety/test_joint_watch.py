import math

import pytest

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.safety.joint_watch import JointWatch

LIMITS = RobotLimits(
    names=("lift", "spin"),
    lower=(-1.0, -math.inf),
    upper=(1.0, math.inf),
    velocity=(2.0, 2.0),
    acceleration=(8.0, 8.0),
    jump=(0.4, 0.4),
    wraps=(False, True),
)


@pytest.fixture
def watch():
    return JointWatch(LIMITS, timeout_s=0.1)


def test_joints_come_permuted_with_extras_and_from_several_publishers(watch):
    watch.see(["spin", "gripper", "spin_mimic"], [0.3, 9.0, 9.0], [], 1.0)
    assert "lift: never received" in watch.missing(1.0)
    watch.see(["lift"], [0.2], [0.1], 1.05)
    assert watch.missing(1.09) == ""
    assert watch.position == pytest.approx([0.2, 0.3])
    assert watch.missing(1.12).startswith("joint_states: spin: nothing for 0.120 s")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_not_received(watch, value):
    watch.see(["lift", "spin"], [0.0, 0.0], [], 1.0)
    watch.see(["lift", "spin"], [value, 0.1], [], 2.0)
    assert "lift" in watch.missing(2.0)
    assert str(value) in watch.missing(2.0)
    assert watch.position[0] == 0.0


def test_sizes_that_do_not_fit_are_said(watch):
    watch.see(["lift", "spin"], [0.0], [], 1.0)
    assert "1 positions for 2 names" in watch.missing(1.0)
    assert not watch.complete


def test_stamps_must_advance_for_each_joint_until_the_clock_jumps(watch):
    watch.see(["lift", "spin"], [0.0, 0.0], [], 1.0, stamp_ns=100)
    watch.see(["lift", "spin"], [0.5, 0.5], [], 2.0, stamp_ns=100)
    watch.see(["lift", "spin"], [0.5, 0.5], [], 2.0, stamp_ns=50)
    assert "stamp does not advance" in watch.missing(2.0)
    watch.forget_stamps()
    watch.see(["lift", "spin"], [0.5, 0.5], [], 2.0, stamp_ns=50)
    assert watch.missing(2.0) == ""


def test_limits_and_speed_of_the_measured_robot(watch):
    watch.see(["lift", "spin"], [1.04, 50.0], [math.nan, 0.0], 1.0)
    assert watch.out_of_limits() == ""
    watch.see(["lift", "spin"], [1.2, 0.0], [0.0, 0.0], 1.0)
    assert watch.out_of_limits() == "measured position: lift: 1.2000 beyond 1.0000"
    watch.see(["lift", "spin"], [0.0, 0.0], [0.0, -3.5], 1.0)
    assert "measured velocity: spin: 3.5000" in watch.out_of_limits()


def test_distance_is_the_short_way_on_continuous_joints(watch):
    watch.see(["lift", "spin"], [0.0, math.pi - 0.05], [], 1.0)
    assert watch.away_from([0.0, -math.pi + 0.05], 0.2) == ""
    assert "tracking: lift: 0.5000" in watch.away_from([0.5, math.pi], 0.2)
