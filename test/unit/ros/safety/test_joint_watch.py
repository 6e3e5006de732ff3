import math
from dataclasses import replace

import numpy as np
import pytest

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.safety.joint_watch import JointRules, JointWatch

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
    return JointWatch(LIMITS, JointRules(timeout_s=0.1, bad_samples=1, sample_window=1))


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
    assert watch.beyond_limits() == "measured position: lift: 1.2000 beyond 1.0000"
    assert watch.out_of_limits() == watch.beyond_limits() + ", in 1 of the last 1 messages"
    watch.see(["lift", "spin"], [0.0, 0.0], [0.0, -3.5], 1.0)
    assert "measured velocity: spin: 3.5000" in watch.out_of_limits()


def test_distance_is_the_short_way_on_continuous_joints(watch):
    watch.see(["lift", "spin"], [0.0, math.pi - 0.05], [], 1.0)
    tolerance = np.array([0.2, 0.2])
    assert watch.away_from([0.0, -math.pi + 0.05], tolerance) == ""
    assert "tracking: lift: 0.5000" in watch.away_from([0.5, math.pi], tolerance)


def test_each_joint_may_have_tolerances_of_its_own():
    watch = JointWatch(replace(LIMITS, rest=(None, 0.05)), JointRules())
    for tick in range(10):
        watch.see(["lift", "spin"], [0.0, 0.04 * (tick % 2)], [], 1.0 + 0.05 * tick)
    assert watch.moving(1.5) == ""
    watch.see(["lift", "spin"], [0.003, 0.04], [], 1.5)
    assert "lift moved by 0.0030" in watch.moving(1.5)
    # The one that is furthest by its own measure is named.
    assert "lift: 0.0970 from the commanded state, limit 0.0500" in watch.away_from(
        [0.1, 0.34], np.array([0.05, 0.2])
    )
    assert watch.away_from([0.04, 0.2], np.array([0.05, 0.2])) == ""


def test_a_bounded_number_of_bad_samples_in_a_window_is_no_stop():
    watch = JointWatch(LIMITS, JointRules(bad_samples=3, sample_window=10))
    for number in range(30):
        # Twice in ten: noise of the sensor.
        speed = 3.5 if number % 5 == 0 else 0.0
        watch.see(["lift", "spin"], [0.0, 0.0], [0.0, speed], 1.0 + 0.008 * number)
        assert watch.out_of_limits() == ""
    for number in range(2):
        watch.see(["lift", "spin"], [0.0, 0.0], [0.0, 3.5], 2.0 + 0.008 * number)
    assert watch.out_of_limits().endswith("in 3 of the last 10 messages")


def test_rest_is_a_band_that_no_joint_leaves_for_a_while():
    watch = JointWatch(LIMITS, JointRules(rest_tolerance=0.002, rest_time_s=0.2))
    assert "never received" in watch.moving(1.0)
    for number in range(27):
        noise = 0.0015 if number % 2 else -0.0004
        watch.see(["lift", "spin"], [noise, 0.0], [], 1.0 + 0.008 * number)
        assert bool(watch.moving(1.0 + 0.008 * number)) is (number < 26)
    watch.see(["lift", "spin"], [0.01, 0.0], [], 1.208)
    assert "lift moved by 0.0" in watch.moving(1.208)
    assert "0.00 s of 0.2 s" in watch.moving(1.208)
    # Slow motion is not rest.
    for number in range(100):
        watch.see(["lift", "spin"], [0.02 * 0.008 * number, 0.0], [], 2.0 + 0.008 * number)
        assert number < 2 or watch.moving(2.0 + 0.008 * number)
    assert "nothing for" in watch.moving(5.0)


def test_velocity_is_the_slope_where_none_is_measured():
    watch = JointWatch(LIMITS, JointRules())
    for number in range(20):
        watch.see(["lift", "spin"], [0.5 * 0.008 * number, 0.0], [], 1.0 + 0.008 * number)
    assert watch.without_velocity
    assert watch.velocity == pytest.approx([0.5, 0.0])
    watch.see(["lift", "spin"], [0.1, 0.0], [0.7, 0.1], 1.2)
    assert not watch.without_velocity
    assert watch.velocity == pytest.approx([0.7, 0.1])


def test_two_publishers_that_disagree_count_as_missing_and_are_named(watch):
    watch.publisher_names = {b"1": "/driver", b"2": "/sliders"}
    for tick in range(5):
        now_s = 1.0 + 0.01 * tick
        watch.see(["lift", "spin"], [0.5, 0.0], [], now_s, publisher=b"1")
    assert watch.missing(1.05) == ""
    watch.see(["lift", "spin"], [0.0, 0.0], [], 1.05, publisher=b"2")
    assert watch.missing(1.05) == (
        "joint_states: two publishers disagree: lift is 0.500 from /driver and 0.000 from "
        "/sliders; stop one of them"
    )
    assert watch.moving(1.05) == watch.missing(1.05)
    # It holds for a moment after the second one is gone.
    for tick in range(300):
        watch.see(["lift", "spin"], [0.5, 0.0], [], 1.06 + 0.01 * tick, publisher=b"1")
    assert watch.missing(4.05) == ""


def test_a_clock_that_does_not_serve_is_named_where_joints_are_missing(watch):
    watch.see(["lift", "spin"], [0.0, 0.0], [], 1.0, stamp_ns=10)
    watch.clock_fault = "/clock advances in steps of 0.100 s"
    assert watch.missing(1.05) == ""
    watch.see(["lift", "spin"], [0.0, 0.0], [], 1.11, stamp_ns=10)
    assert watch.missing(1.12).endswith(
        "(joint_states: spin: the stamp does not advance; /clock advances in steps of 0.100 s)"
    )
