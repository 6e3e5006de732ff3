"""95% confidence intervals of means, shares and paired differences over episodes. Pure."""

from __future__ import annotations

import math

import numpy as np

from physis_core.types import Array

# Two-sided 95% quantiles of Student's t for 1 to 30 degrees of freedom; above 30,
# 1.96 + 2.5 / df is within 0.2% of the tables.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def mean_interval(values: Array) -> tuple[float, float]:
    """Mean of independent values [n] and the half width of its 95% interval (Student's t).

    The half width is NaN for a single value.
    """
    count = len(values)
    if count < 2:
        return float(np.mean(values)), math.nan
    freedom = count - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.5 / freedom
    half = quantile * float(np.std(values, ddof=1)) / math.sqrt(count)
    return float(np.mean(values)), half


def paired_difference(ours: Array, theirs: Array) -> tuple[float, float]:
    """Mean of ours - theirs over the same episodes, and the half width of its 95% interval."""
    return mean_interval(np.asarray(ours) - np.asarray(theirs))


def wilson(hits: int, of: int) -> tuple[float, float]:
    """95% interval of a share (Wilson's score)."""
    z, share = 1.96, hits / of
    centre = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of)) / (1 + z * z / of)
    return max(0.0, centre - half), min(1.0, centre + half)
