"""Figures as the messages that carry them."""

from __future__ import annotations

from physis_core import types
from physis_ros.msg import Percentiles


def percentiles_message(found: types.Percentiles) -> Percentiles:
    return Percentiles(p50=found.p50, p99=found.p99, p999=found.p999, max=found.max, n=found.n)
