"""How long a task takes beside its profile."""

from __future__ import annotations

import math

import pytest

from physis_core.sim.noise import SpeedTrace
from physis_core.types import UserError


def test_the_speed_of_a_device_changes_step_by_step_and_the_last_one_lasts() -> None:
    speed = SpeedTrace(step_s=0.5, factors={1: (1.2, 0.9)})
    times_s = (0.0, 0.49, 0.5, 0.99, 7.0)
    assert [speed.factor(1, at_s) for at_s in times_s] == [1.2, 1.2, 0.9, 0.9, 0.9]
    assert speed.factor(0, 0.0) == 1.0


@pytest.mark.parametrize(
    ("step_s", "factors", "field"),
    [
        (0.0, {0: (1.0,)}, "step_s"),
        (math.inf, {0: (1.0,)}, "step_s"),
        (1.0, {3: ()}, "factors[3]"),
        (1.0, {3: (1.0, 0.0)}, "factors[3]"),
        (1.0, {3: (math.nan,)}, "factors[3]"),
    ],
)
def test_a_speed_that_makes_no_sense_is_refused_by_name(
    step_s: float, factors: dict[int, tuple[float, ...]], field: str
) -> None:
    with pytest.raises(UserError) as error:
        SpeedTrace(step_s=step_s, factors=factors)
    assert error.value.field == field
