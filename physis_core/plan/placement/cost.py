"""The time that a device needs for its tasks of one period, which may run in batches.

Tasks of one block, of any step or stream, may run as one batch. k tasks of a block cost as much as
the cheapest division into batches, which is between t(k) and k * t(1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from physis_core.deployment.profile import ModelProfile
from physis_core.pipeline.costs import Costs


class BatchCost:
    """Cheapest seconds of k tasks of one block, cut into batches of at most `max_batch`."""

    __slots__ = ("_costs", "_known", "max_batch")

    def __init__(self, costs: Costs, max_batch: int) -> None:
        self._costs = costs
        self.max_batch = max_batch
        self._known: dict[int, list[float]] = {}

    def cheapest_s(self, block: int, tasks: int) -> float:
        known = self._known.setdefault(block, [0.0])
        while len(known) <= tasks:
            k = len(known)
            known.append(
                min(
                    known[k - size] + self._costs.predict_s(block, size)
                    for size in range(1, min(k, self.max_batch) + 1)
                )
            )
        return known[tasks]

    def one_by_one_s(self, block: int, tasks: int) -> float:
        return tasks * self._costs.predict_s(block, 1)


def with_tail_s(parts: Iterable[tuple[float, float]]) -> float:
    """p99 of a sum of independent parts (p50, p99): medians add; excesses add as squares."""
    total, square = 0.0, 0.0
    for p50_s, p99_s in parts:
        total += p50_s
        square += (p99_s - p50_s) ** 2
    return total + math.sqrt(square)


class RankCost:
    """Period cost of virtual ranks of one model: batched or one by one, at p50 or with p99
    margin.
    """

    def __init__(self, profile: ModelProfile, max_batch: int) -> None:
        self.profile = profile
        self._p50 = BatchCost(profile.table(), max_batch)
        self._p99 = BatchCost(profile.table(p99=True), max_batch)
        # Blocks of one model are mostly equal, and so are most of its ranks.
        self._kind = [profile.block_costs.index(cost) for cost in profile.block_costs]
        self._known: dict[tuple[tuple[tuple[int, int], int], ...], tuple[float, ...]] = {}

    def rank_s(self, stages: Sequence[int], *, p99: bool, batched: bool = True) -> float:
        """Seconds that these stages of one stream take of a device in each period."""
        return self.rank(stages)[2 * batched + p99]

    def rank(self, stages: Sequence[int]) -> tuple[float, ...]:
        """All four at once: one by one at p50 and p99, batched at p50 and p99."""
        tasks: dict[int, int] = {}
        for stage in stages:
            block = stage % self.profile.blocks
            tasks[block] = tasks.get(block, 0) + 1
        alike: dict[tuple[int, int], int] = {}
        for block, count in tasks.items():
            key = (self._kind[block], count)
            alike[key] = alike.get(key, 0) + 1
        signature = tuple(sorted(alike.items()))
        known = self._known.get(signature)
        if known is None:
            known = self._known[signature] = self._rank(signature)
        return known

    def _rank(self, signature: tuple[tuple[tuple[int, int], int], ...]) -> tuple[float, ...]:
        single: list[tuple[float, float]] = []
        batched: list[tuple[float, float]] = []
        for (block, count), times in signature:
            one = self._p50.one_by_one_s(block, 1), self._p99.one_by_one_s(block, 1)
            single.extend([one] * (count * times))
            both = self._p50.cheapest_s(block, count), self._p99.cheapest_s(block, count)
            batched.extend([both] * times)
        return (
            sum(low for low, _ in single),
            with_tail_s(single),
            sum(low for low, _ in batched),
            with_tail_s(batched),
        )

    def stage_s(self, stage: int, batch: int, *, p99: bool = False) -> float:
        block = stage % self.profile.blocks
        table = self._p99 if p99 else self._p50
        if batch <= 1:
            return table.one_by_one_s(block, 1)
        return table.cheapest_s(block, batch)


def rank_bytes(profile: ModelProfile, stages: Sequence[int], max_batch: int) -> tuple[float, float]:
    """(weights, the rest: KV and activations) of these stages on one device."""
    blocks = {stage % profile.blocks for stage in stages}
    weights = sum(profile.block_costs[b].weight_bytes for b in blocks)
    weights += profile.shared_weight_bytes
    workspace = profile.activation_bytes * min(max_batch, profile.graph.passes)
    return weights, profile.kv_bytes_of(stages) + workspace
