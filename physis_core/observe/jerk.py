"""How rough a motion is: the rms of its jerk. Pure."""

from __future__ import annotations

import math

import numpy as np

from physis_core.types import Array

SPACING_S = 0.04
"""Between the four positions of one difference: whole ticks at 125 Hz (the simulated controller)
and at 100 Hz (the fast loop), so that both are judged over the same time."""


def rms_jerk(positions: Array, at_s: Array) -> float:
    """Root mean square of the third derivative of joint positions, rad/s^3, over times and joints.

    The third difference over a spacing h of whole ticks, at every tick:
    (x[t + 3h] - 3 x[t + 2h] + 3 x[t + h] - x[t]) / h^3. It equals the third derivative of a cubic
    exactly. h is long compared with a tick, so that the sampling grid does not count as roughness;
    motion above about 1 / (4 h) is damped.

    Args:
        positions: [ticks, joints] rad.
        at_s: [ticks] s, increasing. Where a tick is missing, differences across it are left out.

    Returns:
        NaN where no four positions are that far apart in time.
    """
    if len(at_s) < 4:
        return math.nan
    tick_s = float(np.median(np.diff(at_s)))
    step = max(1, round(SPACING_S / tick_s))
    if len(at_s) <= 3 * step:
        return math.nan
    first, second, third, fourth = (
        positions[n * step : len(positions) - (3 - n) * step] for n in range(4)
    )
    span_s = at_s[3 * step :] - at_s[: -3 * step]
    whole = np.abs(span_s - 3 * step * tick_s) < 0.5 * tick_s
    if not whole.any():
        return math.nan
    jerk = (fourth - 3.0 * third + 3.0 * second - first)[whole] / (step * tick_s) ** 3
    return float(np.sqrt(np.mean(jerk**2)))
