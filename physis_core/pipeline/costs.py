"""How long a batch of one block takes: from a profile, and corrected by what was measured since.

A `block` here is any integer that names one set of weights on one device; where several models
share a device, each block of each model has its own number.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Protocol

from physis_core.types import UserError

TABLE_BATCH = 64
"""Batches up to this size are looked up; larger ones are extrapolated by the last slope."""


class Costs(Protocol):
    def predict_s(self, block: int, batch: int) -> float:
        """Predicted seconds of one run of `block` over `batch` tasks."""
        ...


def cost_row(block: int, points: Mapping[int, float]) -> list[float]:
    """Seconds by batch size 0..TABLE_BATCH from measured points, linear between and beyond them."""
    if not points:
        raise UserError(f"costs[{block}]", dict(points), "needs at least one batch size")
    for batch, seconds in points.items():
        if batch < 1:
            raise UserError(f"costs[{block}]", batch, "batch sizes start at 1")
        if not 0.0 <= seconds < float("inf"):
            raise UserError(f"costs[{block}][{batch}]", seconds, "seconds must be finite and >= 0")
    sizes = sorted(points)
    if sizes[0] != 1:
        raise UserError(f"costs[{block}]", sizes[0], "a cost for batch size 1 is needed")
    row = [0.0, float(points[1])]
    if len(sizes) == 1:
        # One point says nothing of the gain, so none is assumed.
        return [row[1] * batch for batch in range(TABLE_BATCH + 1)]
    slope = 0.0
    for low, high in pairwise(sizes):
        slope = max(0.0, (points[high] - points[low]) / (high - low))
        start_s = float(points[low])
        row.extend(start_s + slope * step for step in range(1, high - low))
        row.append(float(points[high]))
    last_s = row[-1]
    row.extend(last_s + slope * step for step in range(1, TABLE_BATCH + 2 - len(row)))
    return row[: TABLE_BATCH + 1]


class CostTable:
    """Predicted seconds by block and batch size; nonlinear in the batch, immutable.

    `points[block][batch]` are measured seconds. Between measured sizes the cost is linear; beyond
    the largest it goes on with the last slope; a block with one point only is taken to gain
    nothing.
    """

    __slots__ = ("_rows",)

    def __init__(self, points: Mapping[int, Mapping[int, float]]) -> None:
        # Blocks of one model mostly share one row of points, and then one row here.
        known: dict[int, list[float]] = {}
        self._rows: dict[int, list[float]] = {}
        for block, row in points.items():
            if id(row) not in known:
                known[id(row)] = cost_row(block, row)
            self._rows[block] = known[id(row)]

    @classmethod
    def of_rows(cls, rows: dict[int, list[float]]) -> CostTable:
        """A table over rows that `cost_row` made. They are shared, not copied."""
        table = cls({})
        table._rows = rows
        return table

    def __contains__(self, block: object) -> bool:
        return block in self._rows

    def predict_s(self, block: int, batch: int) -> float:
        row = self._rows[block]
        if batch <= TABLE_BATCH:
            return row[batch]
        return row[-1] + (row[-1] - row[-2]) * (batch - TABLE_BATCH)

    @property
    def blocks(self) -> tuple[int, ...]:
        return tuple(sorted(self._rows))


class OnlineCosts:
    """A cost table that learns from what batches really took.

    Each (block, batch) keeps an exponential mean of its measured seconds; sizes not yet seen are
    scaled by the mean ratio of their block, so that a device that is twice as slow as its profile
    is known to be so for every batch size after a few runs. One measurement moves a mean by at most
    `clip` times its value, so that a single stall does not spoil the predictions.
    """

    __slots__ = ("_base", "_clip", "_ratio", "_seen", "_weight")

    def __init__(self, base: Costs, *, weight: float = 0.1, clip: float = 4.0) -> None:
        if not 0.0 < weight <= 1.0:
            raise UserError("weight", weight, "must be in (0, 1]")
        if clip <= 1.0:
            raise UserError("clip", clip, "must be above 1")
        self._base = base
        self._weight = weight
        self._clip = clip
        self._ratio: dict[int, float] = {}
        self._seen: dict[tuple[int, int], float] = {}

    def predict_s(self, block: int, batch: int) -> float:
        seen = self._seen.get((block, batch))
        if seen is not None:
            return seen
        return self._base.predict_s(block, batch) * self._ratio.get(block, 1.0)

    def observe(self, block: int, batch: int, measured_s: float) -> None:
        expected_s = self.predict_s(block, batch)
        if expected_s > 0.0:
            measured_s = min(max(measured_s, expected_s / self._clip), expected_s * self._clip)
        moved_s = expected_s + self._weight * (measured_s - expected_s)
        self._seen[(block, batch)] = moved_s
        base_s = self._base.predict_s(block, batch)
        if base_s > 0.0:
            old = self._ratio.get(block, 1.0)
            self._ratio[block] = old + self._weight * (measured_s / base_s - old)

    def ratio(self, block: int) -> float:
        """Measured over profiled seconds of this block, as learnt so far; 1.0 before any run."""
        return self._ratio.get(block, 1.0)
