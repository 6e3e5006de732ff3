from __future__ import annotations

import math

import numpy as np
import pytest

from physis_lab.arm.judge import MotionJudge, Passed
from physis_lab.arm.limits import UR5E_LIMITS

TICK_S = 0.008
STILL = np.zeros(6)


def judged(positions: np.ndarray) -> Passed:
    judge = MotionJudge(UR5E_LIMITS, TICK_S)
    found = Passed.NONE
    for position in positions:
        found |= judge.look(np.full(6, position), STILL, STILL)
    return found


def test_a_motion_at_the_limits_passes_none() -> None:
    times = np.arange(0.0, 0.35, TICK_S)
    assert judged(0.5 * 8.0 * times**2) == Passed.NONE


@pytest.mark.parametrize(
    ("positions", "flag"),
    [
        (0.5 * 9.0 * np.arange(0.0, 0.3, TICK_S) ** 2, Passed.COMMAND_ACCELERATION),
        (np.arange(40) * TICK_S * 3.3, Passed.COMMAND_VELOCITY),
        (np.full(3, 3.2), Passed.COMMAND_POSITION),
        (np.array([0.0, math.nan, 0.0]), Passed.COMMAND_NOT_FINITE),
        (np.array([0.0, 0.0, 1.0, 1.0]), Passed.COMMAND_VELOCITY),
    ],
)
def test_each_limit_has_its_flag(positions: np.ndarray, flag: Passed) -> None:
    assert judged(positions) & flag


def test_measured_state_is_judged_too() -> None:
    judge = MotionJudge(UR5E_LIMITS, TICK_S)
    assert judge.look(STILL, np.full(6, 7.0), STILL) == Passed.MEASURED_POSITION
    assert judge.look(STILL, STILL, np.full(6, 3.3)) == Passed.MEASURED_VELOCITY


def test_forgetting_forgives_a_pause() -> None:
    judge = MotionJudge(UR5E_LIMITS, TICK_S)
    judge.look(STILL, STILL, STILL)
    judge.forget()
    assert judge.look(STILL + 1.0, STILL, STILL) == Passed.NONE
