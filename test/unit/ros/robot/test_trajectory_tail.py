import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from physis_ros.robot.joint_motion import JointMotion, segment_peaks
from physis_ros.robot.trajectory_tail import LEAST_STEP_S, braking_tail

joints = st.integers(1, 7)


@st.composite
def states(draw):
    count = draw(joints)
    vector = lambda low, high: draw(  # noqa: E731
        hnp.arrays(np.float64, count, elements=st.floats(low, high, allow_nan=False))
    )
    return vector(-6.0, 6.0), vector(-4.0, 4.0), vector(0.5, 20.0)


@settings(max_examples=100, deadline=None)
@given(states())
def test_a_tail_comes_to_exact_rest_within_the_limit(state):
    position, velocity, acceleration = state
    tail = braking_tail(position, velocity, acceleration)
    if not velocity.any():
        assert tail.times_s.size == 0
        return
    assert np.all(np.diff(tail.times_s) > 0.0)
    assert tail.times_s[0] > 0.0
    assert not tail.velocities[-1].any()
    own_s = np.maximum(np.abs(velocity) / acceleration, LEAST_STEP_S)
    assert tail.times_s[-1] == pytest.approx(np.max(own_s), abs=2e-9)
    peaks = segment_peaks(
        np.concatenate([[0.0], tail.times_s]),
        np.concatenate([position[None], tail.positions]),
        np.concatenate([velocity[None], tail.velocities]),
    )
    # Everywhere, also where joints stop within microseconds of each other.
    assert np.all(peaks.acceleration <= acceleration * (1.0 + 1e-6) + 1e-3)
    rest = position + velocity * np.abs(velocity) / (2.0 * acceleration)
    assert np.all(np.abs(tail.positions[-1] - rest) <= 0.5 * np.abs(velocity) * 1.01e-5 + 1e-9)
    # A message carries the same times.
    assert np.array_equal(np.round(tail.times_s * 1e9) / 1e9, tail.times_s)


def test_joints_that_stop_almost_together_keep_the_limit():
    """Speeds of one direction of change, as safety forwards them at the end of a motion."""
    velocity = np.array([7.3e-5, 6.6e-5, -7.1e-5])
    tail = braking_tail(np.zeros(3), velocity, np.full(3, 8.0))
    peaks = segment_peaks(
        np.concatenate([[0.0], tail.times_s]),
        np.concatenate([np.zeros((1, 3)), tail.positions]),
        np.concatenate([velocity[None], tail.velocities]),
    )
    assert np.all(peaks.acceleration <= 8.0 * (1.0 + 1e-6))


def test_each_joint_stops_at_its_own_time_and_stays():
    tail = braking_tail(np.zeros(2), np.array([1.0, -2.0]), np.array([10.0, 5.0]))
    motion = JointMotion(tail.times_s, tail.positions, tail.velocities)
    assert tail.times_s == pytest.approx([0.1, 0.4])
    assert tail.positions[-1] == pytest.approx([0.05, -0.4])
    assert motion.state(0.25)[0][0] == pytest.approx(0.05)
    assert not motion.state(9.0)[1].any()
