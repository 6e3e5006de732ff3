"""What each rank of a stream needs of a device: tasks by block, their seconds, and bytes.

The blocks of all models have one numbering (`key`). Tasks of one block batch, so each costs what
it costs in the largest batch that can form where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from physis_core.deployment.profile import ModelProfile
from physis_core.pipeline.partition import Partition
from physis_core.plan.placement.cost import BatchCost

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TABLE = 256
"""Above this count the cost per task is taken as constant: batches do not grow any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDemand:
    """One virtual rank: how many tasks of which block each period, and the bytes that it adds."""

    keys: Ints
    tasks: Ints
    rate_hz: float
    bytes: float


class BlockTables:
    """By key: bytes of weights [keys]; seconds per task by task count [keys, TABLE + 1], the median
    (`average`) and what p99 adds to it (`excess`).
    """

    def __init__(self, models: Mapping[str, ModelProfile], max_batch: int) -> None:
        self.models = dict(models)
        self.first_key: dict[str, int] = {}
        self._demands: dict[tuple[str, Partition], tuple[RankDemand, ...]] = {}
        weights: list[float] = []
        average: list[list[float]] = []
        excess: list[list[float]] = []
        for name, profile in self.models.items():
            self.first_key[name] = len(weights)
            low = BatchCost(profile.table(), max_batch)
            high = BatchCost(profile.table(p99=True), max_batch)
            rows: dict[int, tuple[list[float], list[float]]] = {}
            for block, cost in enumerate(profile.block_costs):
                # Blocks of one profile are mostly equal, and one table takes a while.
                if id(cost) not in rows:
                    rows[id(cost)] = _averages(low, high, block)
                weights.append(cost.weight_bytes)
                average.append(rows[id(cost)][0])
                excess.append(rows[id(cost)][1])
            # Behind a model's blocks a key for what each of its devices holds: no task has it.
            weights.append(profile.shared_weight_bytes)
            average.append([0.0] * (TABLE + 1))
            excess.append([0.0] * (TABLE + 1))
        self.weight: Floats = np.array(weights)
        self.average: Floats = np.array(average)
        self.excess: Floats = np.array(excess)

    def demands(self, model: str, partition: Partition, period_s: float) -> tuple[RankDemand, ...]:
        """What each rank of a stream needs when it runs at `period_s`."""
        known = self._demands.get((model, partition))
        if known is None:
            known = self._demands[model, partition] = self._at_one_hertz(model, partition)
        return tuple(replace(demand, rate_hz=1.0 / period_s) for demand in known)

    def _at_one_hertz(self, model: str, partition: Partition) -> tuple[RankDemand, ...]:
        profile = self.models[model]
        first = self.first_key[model]
        out = []
        for stages in partition.stages_by_rank():
            count: dict[int, int] = {}
            for stage in stages:
                block = stage % profile.blocks
                count[block] = count.get(block, 0) + 1
            blocks = sorted(count)
            out.append(
                RankDemand(
                    keys=np.array([first + b for b in (*blocks, profile.blocks)]),
                    tasks=np.array([count[b] for b in blocks] + [0]),
                    rate_hz=1.0,
                    bytes=profile.kv_bytes_of(stages) + profile.activation_bytes,
                )
            )
        return tuple(out)


def _averages(low: BatchCost, high: BatchCost, block: int) -> tuple[list[float], list[float]]:
    """Seconds per task by task count 0..TABLE, median and excess of p99."""
    p50, excess = [0.0], [0.0]
    for k in range(1, TABLE + 1):
        average = low.cheapest_s(block, k) / k
        p50.append(average)
        excess.append(average * (high.cheapest_s(block, k) / low.cheapest_s(block, k) - 1.0))
    return p50, excess
