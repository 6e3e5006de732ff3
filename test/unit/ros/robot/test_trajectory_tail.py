import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from physis_ros.robot.joint_motion import JointMotion, segment_peaks
from physis_ros.robot.trajectory_tail import braking_tail

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
    assert tail.times_s[-1] == pytest.approx(np.max(np.abs(velocity) / acceleration), abs=2e-6)
    times = np.concatenate([[0.0], tail.times_s])
    peaks = segment_peaks(
        times,
        np.concatenate([position[None], tail.positions]),
        np.concatenate([velocity[None], tail.velocities]),
    )
    # Joints that stop within a microsecond of another share its point: rounding, not braking.
    long_enough = np.diff(times)[:, None] > 1e-3
    assert np.all(peaks.acceleration * long_enough <= acceleration * 1.01 + 1e-3)
    rest = position + velocity * np.abs(velocity) / (2.0 * acceleration)
    assert tail.positions[-1] == pytest.approx(rest, abs=1e-6)


def test_each_joint_stops_at_its_own_time_and_stays():
    tail = braking_tail(np.zeros(2), np.array([1.0, -2.0]), np.array([10.0, 5.0]))
    motion = JointMotion(tail.times_s, tail.positions, tail.velocities)
    assert tail.times_s == pytest.approx([0.1, 0.4])
    assert tail.positions[-1] == pytest.approx([0.05, -0.4])
    assert motion.state(0.25)[0][0] == pytest.approx(0.05)
    assert not motion.state(9.0)[1].any()
