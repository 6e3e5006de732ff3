import numpy as np
import pytest

from physis_core.observe.rowlog import RowTable
from physis_lab.bench.robot.safety_rest import (
    brake_lag_s,
    last_valid_s,
    planned_speeds,
    rest_of,
    resting_since,
    speed_now,
)

TICK_S = 0.008
BRAKING = [4.8, 4.8]
SPEEDS = np.array([0.6, 0.0])
KILLED_S, VALID_S = 100.5, 100.7


def table(columns):
    arrays = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    return RowTable(columns=arrays, units=dict.fromkeys(arrays, ""), meta={})


def arm(braking_from_s, *, speed=0.6, until_s=102.0, settles_s=0.02):
    """Joint 0 moves and brakes from then on, joint 1 stands; measured follows a little later."""
    at = np.arange(100.0, until_s, TICK_S)
    commanded = np.clip(speed - 4.8 * (at - braking_from_s), 0.0, speed)
    measured = np.clip(speed - 4.8 * (at - settles_s - braking_from_s), 0.0, speed)
    zero = np.zeros_like(at)
    return table({"t_s": at, "cmdd0": -commanded, "cmdd1": zero, "qd0": -measured, "qd1": zero})


def test_the_rest_is_when_nothing_moves_any_more():
    made = arm(VALID_S)
    since_s = resting_since(made, KILLED_S)
    # Braking takes 0.125 s, the arm itself 0.02 s more; its last 0.02 rad/s count as rest.
    assert since_s == pytest.approx(VALID_S + 0.125 + 0.02, abs=2 * TICK_S)
    assert resting_since(arm(VALID_S, until_s=100.9), KILLED_S) is None
    assert resting_since(arm(VALID_S, until_s=since_s + 0.2), KILLED_S) is None
    assert resting_since(arm(VALID_S), 101.9) is None


@pytest.mark.parametrize("late_s", [0.0, 0.003, 0.05, -0.1])
def test_the_lag_is_how_long_after_the_last_valid_point_braking_began(late_s):
    found = brake_lag_s(arm(VALID_S + late_s), KILLED_S, VALID_S, SPEEDS, BRAKING)
    assert found == pytest.approx(late_s, abs=1e-6)


def test_an_arm_that_was_slower_than_planned_is_not_said_to_brake_late():
    # It meets the planned braking half way, when that has come down to its own speed.
    met = arm(VALID_S + 0.0625, speed=0.3)
    assert brake_lag_s(met, KILLED_S, VALID_S, SPEEDS, BRAKING) == pytest.approx(0.0, abs=1e-6)


def test_an_arm_that_does_not_rest_is_no_trial():
    moving = arm(VALID_S, until_s=100.75)
    with pytest.raises(ValueError, match="does not rest"):
        brake_lag_s(moving, KILLED_S, VALID_S, SPEEDS, BRAKING)
    with pytest.raises(ValueError, match="does not rest"):
        rest_of("buffer", moving, KILLED_S, VALID_S, SPEEDS, BRAKING)


def test_a_trial_is_told_whole():
    found = rest_of("buffer", arm(VALID_S), KILLED_S, VALID_S, SPEEDS, BRAKING)
    assert found.killed == "buffer"
    assert found.speed_rad_s == pytest.approx(0.6)
    assert found.rest_s == pytest.approx(0.345, abs=2 * TICK_S)
    assert found.brake_lag_s == pytest.approx(0.0, abs=1e-6)
    assert speed_now(arm(VALID_S, until_s=100.1)) == pytest.approx(0.6)


def test_the_newest_window_says_what_was_planned():
    def window(start_s, speed):
        rows = [[speed, 0.0], [0.0, 0.0]]
        return {"start_ns": int(start_s * 1e9), "times_s": [0.1, 0.3], "velocities": rows}

    windows = [window(1000.0, 9.0), window(1000.1, 0.4)]
    assert planned_speeds(windows, 100.3, -900.0) == pytest.approx([0.2, 0.0])
    with pytest.raises(ValueError, match="no window"):
        planned_speeds([], 100.3, -900.0)


def test_the_last_valid_point_is_the_end_of_the_last_chunk_that_left():
    ros_s = 1_700_000_000.0
    # Three chunks a tenth of a second apart, each 0.35 s long; the third was refused.
    starts_s = np.array([0.0, 0.1, 0.2])
    chunks = table(
        {
            "t_s": 100.0 + starts_s + 0.02,
            "accepted": [1, 1, 0],
            "handoff_ns": [1, 1, 0],
            "start_ns": (ros_s + starts_s) * 1e9,
        }
    )
    at = np.arange(0.0, 0.3, 0.01)
    newest_end_s = np.where(at >= 0.12, 0.45, 0.35)
    servo = table(
        {
            "t_s": 100.0 + at,
            "ros_ns": (ros_s + at) * 1e9,
            "depth_s": np.where(at >= 0.02, newest_end_s - at, 0.0),
        }
    )
    assert last_valid_s(chunks, servo) == pytest.approx(100.45, abs=1e-5)
    nothing = table({name: [] for name in ("t_s", "accepted", "handoff_ns", "start_ns")})
    with pytest.raises(ValueError, match="the end of a chunk"):
        last_valid_s(nothing, servo)
