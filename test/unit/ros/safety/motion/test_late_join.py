import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import JointMotion, cubic_peaks
from physis_ros.safety.motion.controller_estimate import ControllerEstimate
from physis_ros.safety.motion.late_join import join, rest

LIMITS = RobotLimits(
    names=("lift", "bend"),
    lower=(-1.5, -2.0),
    upper=(1.5, 2.0),
    velocity=(2.0, 1.0),
    acceleration=(8.0, 4.0),
    jump=(0.4, 0.4),
    wraps=(False, False),
)
LATE_S = 0.2


def resting(*position):
    return JointMotion.at_rest(np.array(position), 10.0)


def straight(speed, seconds=1.0):
    """From (0, 0) with constant velocity [joints] from 10.0 s on, then abruptly at rest: the rest
    is not looked at here."""
    times = np.array([10.0, 10.0 + seconds])
    positions = np.array([[0.0, 0.0], np.array(speed) * seconds])
    return JointMotion(times, positions, np.array([speed, speed]))


def arrivals_of(motion):
    estimate = ControllerEstimate(LATE_S)
    estimate.assume(motion)
    return estimate.arrivals(10.0)


def worst(arrivals, found):
    shape = arrivals.positions.shape
    return cubic_peaks(
        arrivals.positions,
        arrivals.velocities,
        np.broadcast_to(found.position, shape),
        np.broadcast_to(found.velocity, shape),
        (found.first_s - arrivals.at_s)[:, None],
    )


def test_the_same_motion_is_joined_at_the_first_chance():
    motion = straight((0.5, 0.2))
    firsts_s = 10.0 + LATE_S + np.array([0.05, 0.1])
    found = join(motion, motion, arrivals_of(motion), LIMITS, firsts_s)
    assert found.first_s == firsts_s[0]
    assert found.share == 1.0
    assert found.position == pytest.approx([0.125, 0.05])


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.floats(-1.0, 1.0), st.floats(-0.8, 0.8)),
    st.tuples(st.floats(-0.3, 0.3), st.floats(-0.3, 0.3)),
)
def test_what_is_joined_keeps_the_limits_from_every_arrival(speed, goal):
    motion, arrivals = straight(speed), arrivals_of(straight(speed))
    firsts_s = 10.0 + LATE_S + np.array([0.05, 0.1, 0.2, 0.4])
    found = join(resting(*goal), motion, arrivals, LIMITS, firsts_s)
    if found is None:
        return
    peaks = worst(arrivals, found)
    assert np.all(peaks.acceleration <= np.array(LIMITS.acceleration) * 1.002)
    assert np.all(peaks.speed <= np.array(LIMITS.velocity) * 1.002)
    assert np.all(peaks.highest <= np.array(LIMITS.upper) + 1e-5)
    assert 0.0 < found.share <= 1.0


def test_a_large_change_is_made_in_part_and_the_joint_is_named():
    motion = resting(0.0, 0.0)
    firsts_s = np.array([10.0 + LATE_S + 0.1])
    found = join(resting(0.0, 0.1), motion, arrivals_of(motion), LIMITS, firsts_s)
    assert 0.0 < found.share < 0.2
    assert found.tightest == "bend"
    assert worst(arrivals_of(motion), found).acceleration.max() == pytest.approx(4.0, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(st.tuples(st.floats(-1.9, 1.9), st.floats(-0.95, 0.95)))
def test_a_rest_can_be_reached_from_every_arrival(speed):
    arrivals = arrivals_of(straight(speed))
    found = rest(arrivals, LIMITS, np.inf)
    assert found is not None
    assert not found.velocity.any()
    peaks = worst(arrivals, found)
    assert np.all(peaks.acceleration <= np.array(LIMITS.acceleration) * 1.002)
    assert np.all(peaks.speed <= np.array(LIMITS.velocity) * 1.002)


def test_a_rest_that_comes_too_late_is_none():
    assert rest(arrivals_of(straight((1.0, 0.5))), LIMITS, 10.0 + LATE_S + 0.02) is None
