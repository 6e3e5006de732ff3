from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.observe.jerk import rms_jerk


@given(
    third=st.floats(-50.0, 50.0),
    rate_hz=st.sampled_from([50.0, 100.0, 125.0, 500.0]),
    begins_s=st.floats(-5.0, 5.0),
)
def test_the_jerk_of_a_cubic_is_its_third_derivative(
    third: float, rate_hz: float, begins_s: float
) -> None:
    at_s = begins_s + np.arange(round(2 * rate_hz)) / rate_hz
    t = at_s - begins_s
    cubic = np.stack([third / 6.0 * t**3 + 2.0 * t**2 - t, 1.0 + 0.0 * t], axis=1)
    # The second joint stands still: the mean square halves.
    assert rms_jerk(cubic, at_s) == pytest.approx(abs(third) / math.sqrt(2.0), abs=1e-3)


def test_two_rates_see_the_same_roughness_of_a_sine() -> None:
    angle = 2.0 * math.pi * 1.0
    found = []
    for rate_hz in (100.0, 125.0):
        at_s = np.arange(round(10 * rate_hz)) / rate_hz
        found.append(rms_jerk(0.3 * np.sin(angle * at_s)[:, None], at_s))
    assert found[0] == pytest.approx(found[1], rel=0.01)
    assert found[0] == pytest.approx(0.3 * angle**3 / math.sqrt(2.0), rel=0.02)


def test_a_pause_of_the_record_is_no_jerk() -> None:
    at_s = np.concatenate([np.arange(100) * 0.01, 5.0 + np.arange(100) * 0.01])
    positions = (0.1 * at_s)[:, None]
    assert rms_jerk(positions, at_s) == pytest.approx(0.0, abs=1e-6)


def test_too_short_a_record_has_no_jerk() -> None:
    assert math.isnan(rms_jerk(np.zeros((3, 6)), np.arange(3.0)))
    assert math.isnan(rms_jerk(np.zeros((12, 6)), np.arange(12) * 0.01))
