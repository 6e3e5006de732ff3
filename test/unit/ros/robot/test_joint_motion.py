import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from physis_ros.robot.joint_motion import (
    JointMotion,
    cubic_bounds,
    cubic_peaks,
    hermite,
    segment_peaks,
)

values = hnp.arrays(np.float64, 4, elements=st.floats(-5.0, 5.0, allow_nan=False))


@settings(max_examples=200, deadline=None)
@given(values, st.floats(0.01, 2.0))
def test_no_sample_of_a_cubic_passes_its_peaks(corners, step_s):
    q0, q1, v0, v1 = (np.array([value]) for value in corners)
    peaks = segment_peaks(np.array([0.0, step_s]), np.array([q0, q1]), np.array([v0, v1]))
    for share in np.linspace(0.0, 1.0, 41):
        position, velocity = hermite(q0, v0, q1, v1, step_s, share * step_s)
        assert peaks.lowest[0, 0] - 1e-9 <= position[0] <= peaks.highest[0, 0] + 1e-9
        assert abs(velocity[0]) <= peaks.speed[0, 0] + 1e-9


@settings(max_examples=200, deadline=None)
@given(values, st.floats(0.01, 2.0))
def test_the_quick_bounds_of_a_cubic_hold_its_peaks(corners, step_s):
    cubic = [np.array([[value]]) for value in corners]
    bounds = cubic_bounds(*cubic, np.array([[step_s]]))
    peaks = cubic_peaks(*cubic, np.array([[step_s]]))
    assert bounds.lowest <= peaks.lowest + 1e-9
    assert bounds.highest >= peaks.highest - 1e-9
    assert bounds.speed >= peaks.speed - 1e-9
    assert np.array_equal(bounds.acceleration, peaks.acceleration)


@settings(max_examples=100, deadline=None)
@given(values, st.floats(0.05, 2.0))
def test_the_velocity_is_the_slope_of_the_position(corners, step_s):
    q0, q1, v0, v1 = (np.array([value]) for value in corners)
    for share in (0.2, 0.5, 0.8):
        at_s, d = share * step_s, 1e-5 * step_s
        before = hermite(q0, v0, q1, v1, step_s, at_s - d)[0]
        after = hermite(q0, v0, q1, v1, step_s, at_s + d)[0]
        slope = (after - before) / (2 * d)
        assert hermite(q0, v0, q1, v1, step_s, at_s)[1] == pytest.approx(slope, rel=1e-3, abs=1e-2)


def test_a_motion_rests_after_its_last_point_and_waits_at_its_first():
    motion = JointMotion(np.array([1.0, 2.0]), np.array([[0.0], [1.0]]), np.array([[0.5], [0.7]]))
    assert motion.state(0.0)[0] == pytest.approx([0.0])
    position, velocity = motion.state(2.5)
    assert position == pytest.approx([1.0])
    assert velocity == pytest.approx([0.0])
    with pytest.raises(ValueError, match="strictly later"):
        JointMotion(np.array([1.0, 1.0]), np.zeros((2, 1)), np.zeros((2, 1)))
