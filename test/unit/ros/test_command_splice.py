import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_ros.command_splice import spliced
from physis_ros.joint_motion import JointMotion
from physis_ros.safety_checks import CheckedTrajectory

GRID_S = 0.01


def sine(times):
    at = np.asarray(times)[:, None] * np.array([1.5, 1.0])
    return 0.4 * np.sin(at), 0.4 * np.cos(at) * np.array([1.5, 1.0])


def motion():
    times = np.arange(0, 100) * GRID_S
    return JointMotion(times, *sine(times))


def window(first_s, told_s, count=40):
    """Points of the motion from `first_s` on, said to begin `told_s` from now."""
    offsets = np.arange(count) * GRID_S
    positions, velocities = sine(first_s + offsets)
    return CheckedTrajectory(times_s=told_s + offsets, positions=positions, velocities=velocities)


@settings(max_examples=100, deadline=None)
@given(st.integers(5, 40), st.floats(0.0, 0.1), st.floats(0.0, 0.06))
def test_a_window_is_put_where_the_motion_passes_through_it(first, elapsed_s, late_s):
    now_s = first * GRID_S - 0.05 + late_s
    told = window(first * GRID_S, 0.05)
    joined = spliced(told, motion(), now_s, first_at_s=0.02, align_s=0.2)
    assert joined.times_s[0] >= 0.02 - 1e-9
    assert np.all(np.diff(joined.times_s) > 0.0)
    for time_s, position in zip(joined.times_s, joined.positions):
        assert position == pytest.approx(sine([now_s + time_s])[0][0], abs=1e-4)


def test_a_command_that_is_elsewhere_is_left_alone():
    told = window(0.3, 0.05)
    elsewhere = CheckedTrajectory(
        times_s=told.times_s, positions=told.positions + 0.1, velocities=told.velocities
    )
    assert spliced(elsewhere, motion(), 0.25, first_at_s=0.02, align_s=0.2) is elsewhere


def test_it_is_not_moved_further_than_allowed():
    told = window(0.3, 0.05)
    assert spliced(told, motion(), 0.15, first_at_s=0.02, align_s=0.05) is told


def test_from_rest_to_rest_nothing_moves():
    rest = JointMotion.at_rest(np.array([0.1, 0.2]), 0.0)
    told = CheckedTrajectory(
        times_s=np.array([0.1, 0.2]),
        positions=np.array([[0.1, 0.2], [0.1, 0.2]]),
        velocities=np.zeros((2, 2)),
    )
    joined = spliced(told, rest, 1.0, first_at_s=0.02, align_s=0.2)
    assert joined.times_s == pytest.approx([0.1, 0.2])
