"""Two publishers of one joint: found where they disagree, never where one repeats the other."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.robot.joint_publishers import Disagreement, JointPublishers, PublishersConfig

JOINTS = ("a", "b")
ROBOT, OTHER, THIRD = b"\x02", b"\x01", b"\x03"
NAMES = {ROBOT: "/joint_state_broadcaster", OTHER: "/joint_state_publisher"}
HOLD_S = PublishersConfig().hold_s


def swing(t_s: float, speed: float) -> float:
    """Goes to and fro; its speed is at most `speed` rad/s."""
    return 1.2 + 0.5 * math.sin(speed * t_s / 0.5)


def test_the_zeros_of_a_second_publisher_are_found_with_its_first_message() -> None:
    watch = JointPublishers(JOINTS)
    for tick in range(10):
        watch.see(JOINTS, (1.571, -0.2), ROBOT, 0.02 * tick)
    assert watch.disagreement(0.18) is None
    watch.see(JOINTS, (0.0, 0.0), OTHER, 0.19)
    found = watch.disagreement(0.19)
    assert found == Disagreement(joint="a", positions=(0.0, 1.571), publishers=(OTHER, ROBOT))
    assert found.line(NAMES) == (
        "two publishers disagree: a is 0.000 from /joint_state_publisher and 1.571 from "
        "/joint_state_broadcaster; stop one of them"
    )


def test_it_lasts_while_both_speak_and_ends_after_one_is_gone() -> None:
    watch = JointPublishers(JOINTS)
    end_s = 0.0
    for tick in range(100):
        now_s = 0.02 * tick
        watch.see(JOINTS, (1.0, 0.0), ROBOT, now_s)
        if tick % 10 == 5 and tick < 60:
            watch.see(JOINTS, (0.0, 0.0), OTHER, now_s)
            end_s = now_s
        if tick >= 5:
            assert watch.disagreement(now_s) is not None
    late_s = end_s + HOLD_S + 0.3
    watch.see(JOINTS, (1.0, 0.0), ROBOT, late_s)
    assert watch.disagreement(late_s) is None


def test_halves_of_a_robot_and_joints_that_do_not_matter_are_no_disagreement() -> None:
    watch = JointPublishers(JOINTS)
    for tick in range(50):
        watch.see(("a", "finger"), (1.0, 0.3), ROBOT, 0.02 * tick)
        watch.see(("b", "finger"), (2.0, 0.0), OTHER, 0.02 * tick + 0.01)
        assert watch.disagreement(0.02 * tick + 0.01) is None


def test_a_driver_that_was_started_anew_agrees_with_the_one_before() -> None:
    watch = JointPublishers(JOINTS)
    watch.see(JOINTS, (1.0, 0.0), ROBOT, 0.0)
    watch.see(JOINTS, (1.6, 0.0), OTHER, 5.0)
    watch.see(JOINTS, (1.6, 0.0), OTHER, 5.1)
    assert watch.disagreement(5.1) is None


@given(
    speed=st.floats(0.0, 3.14),
    delay_s=st.floats(0.0, 0.1),
    rate_hz=st.floats(5.0, 125.0),
    phase=st.floats(0.0, 1.0),
)
def test_a_publisher_that_repeats_the_robot_agrees(
    speed: float, delay_s: float, rate_hz: float, phase: float
) -> None:
    """An aggregator sends what the robot's driver sent up to `delay_s` before, at its own rate."""
    watch = JointPublishers(JOINTS)
    next_s = 0.5 + phase / rate_hz
    for tick in range(250):
        now_s = 0.008 * tick
        watch.see(JOINTS, (swing(now_s, speed), 0.0), ROBOT, now_s)
        if now_s >= next_s:
            watch.see(JOINTS, (swing(now_s - delay_s, speed), 0.0), OTHER, now_s)
            next_s += 1.0 / rate_hz
        assert watch.disagreement(now_s) is None


@given(
    offset=st.floats(0.7, 3.0),
    speed=st.floats(0.0, 3.14),
    rate_hz=st.floats(1.0, 125.0),
    order=st.sampled_from([(ROBOT, OTHER), (OTHER, ROBOT)]),
)
def test_whoever_disagrees_is_found_at_once_and_for_as_long_as_it_speaks(
    offset: float, speed: float, rate_hz: float, order: tuple[bytes, bytes]
) -> None:
    watch = JointPublishers(JOINTS)
    robot, other = order
    next_s = 0.5
    begun = False
    for tick in range(250):
        now_s = 0.008 * tick
        watch.see(JOINTS, (swing(now_s, speed), 0.0), robot, now_s)
        if now_s >= next_s:
            # Below everything that the robot reaches.
            watch.see(JOINTS, (0.7 - offset, 0.0), other, now_s)
            next_s += 1.0 / rate_hz
            begun = True
        assert (watch.disagreement(now_s) is not None) == begun


def test_without_ids_a_joint_that_jumps_to_and_fro_is_found() -> None:
    watch = JointPublishers(JOINTS)
    for tick in range(6):
        watch.see(JOINTS, (1.571, 0.0), None, 0.02 * tick)
        watch.see(JOINTS, (0.0, 0.0), None, 0.02 * tick + 0.01)
    found = watch.disagreement(0.11)
    assert found is not None
    assert found.publishers == ()
    line = found.line(NAMES)
    assert "a is 1.571 and 0.000 in turn" in line
    assert "/joint_state_broadcaster, /joint_state_publisher" in line


def test_without_ids_a_slow_second_publisher_beside_a_fast_one_is_found() -> None:
    watch = JointPublishers(JOINTS)
    for tick in range(60):
        watch.see(JOINTS, (swing(0.01 * tick, 1.0), 0.0), None, 0.01 * tick)
        if tick % 10 == 5:
            watch.see(JOINTS, (0.0, 0.0), None, 0.01 * tick + 0.005)
    assert watch.disagreement(0.6) is not None


@given(
    speed=st.floats(0.0, 3.14),
    rate_hz=st.floats(10.0, 500.0),
    phase_s=st.floats(0.0, 1.0),
)
@example(speed=3.125, rate_hz=10.0, phase_s=0.0)
def test_without_ids_a_moving_arm_is_no_disagreement(
    speed: float, rate_hz: float, phase_s: float
) -> None:
    watch = JointPublishers(JOINTS)
    for tick in range(200):
        now_s = tick / rate_hz
        watch.see(JOINTS, (swing(phase_s + now_s, speed), 0.0), None, now_s)
        assert watch.disagreement(now_s) is None


def test_without_ids_one_wrong_sample_is_no_second_publisher() -> None:
    watch = JointPublishers(JOINTS)
    for tick in range(20):
        watch.see(JOINTS, (0.0 if tick == 10 else 1.0, 0.0), None, 0.02 * tick)
    assert watch.disagreement(0.4) is None


def test_what_is_not_finite_says_nothing_and_forgetting_ends_it() -> None:
    watch = JointPublishers(JOINTS)
    watch.see(JOINTS, (1.0, 0.0), ROBOT, 0.0)
    watch.see(JOINTS, (math.nan, 0.0), OTHER, 0.01)
    assert watch.disagreement(0.01) is None
    watch.see(JOINTS, (2.0, 0.0), OTHER, 0.02)
    assert watch.disagreement(0.02) is not None
    watch.forget()
    assert watch.disagreement(0.02) is None


def test_a_third_publisher_that_agrees_hides_nothing() -> None:
    watch = JointPublishers(JOINTS)
    for tick in range(20):
        for place, (publisher, at) in enumerate(((ROBOT, 1.0), (THIRD, 1.0), (OTHER, 0.0))):
            watch.see(JOINTS, (at, 0.0), publisher, 0.02 * tick + 0.001 * place)
    found = watch.disagreement(0.4)
    assert found is not None
    assert OTHER in found.publishers


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="tolerance_rad: 0"):
        PublishersConfig(tolerance_rad=0.0)
