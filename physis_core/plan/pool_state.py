"""A pool of devices with what stands on it: memory, and time as the cost of batches that form.

Weights of a block count once per device, whoever runs it. Tasks of one block batch, so each costs
what it costs in the largest batch that can form there (see `forming`); times carry a p99 margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from physis_core.plan.cost import BatchCost
from physis_core.plan.partition import Partition
from physis_core.plan.profile import ModelProfile
from physis_core.plan.topology import Pool
from physis_core.types import UserError

_TABLE = 256
"""Task counts beyond this cost what they cost at it: batches are as large as they get."""

EPS = 1e-9
Fit = Literal["best", "spread"]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDemand:
    """One virtual rank: how many tasks of which block each period, and bytes that are its alone."""

    keys: Ints
    tasks: Ints
    rate_hz: float
    bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a rank fits nowhere: `resource` is `memory` or `time`, on the device that misses
    least.
    """

    resource: str
    device: int
    rank: int
    missing: float
    missing_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """Every device as it would be with one more rank: memory, load, and what these are made of."""

    memory: Floats
    load: Floats
    mean: Floats
    square: Floats
    weights: Floats


Undo = tuple[float, float, float]
State = TypeVar("State", bound="PoolState")


class PoolState:
    """The pool with what stands on it. Streams come whole and leave whole; nobody moves.

    Args:
        models: every model that may be asked for, by name.
        max_batch: largest batch of the devices.
        margin: share of each device's time that stays free.
        shared_overhead: extra share of a task's time on a device that several streams share.
        shared_bytes: memory that a device needs besides, once more than one stream is on it.
        fit: `best` fills devices one after the other; `spread` puts each block's weights on as few
            devices as it can, and the ranks of a stream on many.
        forming: 1: every batch that can form does; 0: none does; between: linear.
    """

    def __init__(
        self,
        pool: Pool,
        models: Mapping[str, ModelProfile],
        *,
        max_batch: int = 16,
        margin: float = 0.15,
        shared_overhead: float = 0.0,
        shared_bytes: float = 0.0,
        forming: float = 1.0,
        fit: Fit = "best",
    ) -> None:
        if not 0.0 <= margin < 1.0:
            raise UserError("margin", margin, "must be in [0, 1)")
        if not 0.0 <= forming <= 1.0:
            raise UserError("forming", forming, "must be in [0, 1]")
        self.pool = pool
        self.models = dict(models)
        self.max_batch = max_batch
        self.margin = margin
        self.shared_overhead = shared_overhead
        self.shared_bytes = shared_bytes
        self.forming = forming
        self.fit = fit
        self.first_key: dict[str, int] = {}
        weights: list[float] = []
        p50: list[list[float]] = []
        excess: list[list[float]] = []
        for name, profile in self.models.items():
            self.first_key[name] = len(weights)
            low = BatchCost(profile.table(), max_batch)
            high = BatchCost(profile.table(p99=True), max_batch)
            rows: dict[int, tuple[list[float], list[float]]] = {}
            for block, cost in enumerate(profile.block_costs):
                # Blocks of one profile are mostly equal, and the table of one is not cheap to make.
                if id(cost) not in rows:
                    rows[id(cost)] = _averages(low, high, block, forming)
                shared = profile.shared_weight_bytes if block in (0, profile.blocks - 1) else 0.0
                weights.append(cost.weight_bytes + shared)
                p50.append(rows[id(cost)][0])
                excess.append(rows[id(cost)][1])
        self._weight: Floats = np.array(weights)
        self._average: Floats = np.array(p50)
        self._excess: Floats = np.array(excess)
        self._clear()

    def _clear(self) -> None:
        pool, devices, keys = self.pool, self.pool.devices, len(self._weight)
        self._count: Ints = np.zeros((devices, keys), dtype=np.int64)
        self._rate: Floats = np.zeros((devices, keys))
        self._bytes: Floats = np.zeros(devices)
        self.streams: Ints = np.zeros(devices, dtype=np.int64)
        self._mean: Floats = np.zeros(devices)
        self._square: Floats = np.zeros(devices)
        self._weights: Floats = np.zeros(devices)
        self.hosts: Ints = np.array([pool.host_of(g) for g in range(devices)])
        self.placed: dict[str, tuple[tuple[RankDemand, ...], tuple[int, ...]]] = {}

    def widened(self: State, more: int) -> State:
        """The same streams in a pool with `more` further, empty devices."""
        wider = copy(self)
        wider.pool = replace(self.pool, devices=self.pool.devices + more)
        wider._clear()
        for stream_id, (demands, devices) in self.placed.items():
            wider.add(stream_id, demands, devices)
        return wider

    # -- demands ----------------------------------------------------------------------------------

    def demands(self, model: str, partition: Partition, period_s: float) -> tuple[RankDemand, ...]:
        """What each rank of a stream needs when it runs at `period_s`."""
        profile = self.models[model]
        first = self.first_key[model]
        out = []
        for rank in range(partition.ranks):
            stages = partition.stages_of(rank)
            count: dict[int, int] = {}
            for stage in stages:
                block = stage % profile.blocks
                count[block] = count.get(block, 0) + 1
            blocks = sorted(count)
            caches = len(blocks) if profile.kv == "clean" else len(stages)
            out.append(
                RankDemand(
                    keys=np.array([first + b for b in blocks]),
                    tasks=np.array([count[b] for b in blocks]),
                    rate_hz=1.0 / period_s,
                    bytes=caches * profile.kv_bytes + profile.activation_bytes,
                )
            )
        return tuple(out)

    # -- state ------------------------------------------------------------------------------------

    def add(self, stream_id: str, demands: Sequence[RankDemand], devices: Sequence[int]) -> None:
        for demand, device in zip(demands, devices):
            self.put(demand, device, 1)
        for device in set(devices):
            self.streams[device] += 1
        self.placed[stream_id] = (tuple(demands), tuple(devices))

    def growth(self, demands: Sequence[RankDemand], devices: Sequence[int]) -> float:
        """Devices' worth of memory and time that this stream would take there, weights included."""
        before = self._used()
        self.add("", demands, devices)
        after = self._used()
        self.remove("")
        return after - before

    def _used(self) -> float:
        return float(self.memory_used().sum() / self.pool.memory_bytes + self.load().sum())

    def remove(self, stream_id: str) -> None:
        demands, devices = self.placed.pop(stream_id)
        for demand, device in zip(demands, devices):
            self.put(demand, device, -1)
        for device in set(devices):
            self.streams[device] -= 1

    def put(self, demand: RankDemand, device: int, sign: int) -> None:
        keys = demand.keys
        count, rate = self._count[device], self._rate[device]
        count[keys] += sign * demand.tasks
        rate[keys] += sign * demand.tasks * demand.rate_hz
        self._bytes[device] += sign * demand.bytes
        # Sums over all blocks are made anew: differences would drift as streams come and go.
        every = np.flatnonzero(count)
        batch = np.minimum(count[every], _TABLE)
        self._mean[device] = rate[every] @ self._average[every, batch]
        self._square[device] = ((rate[every] * self._excess[every, batch]) ** 2).sum()
        self._weights[device] = self._weight[every].sum()

    def memory_used(self) -> Floats:
        """Bytes by device: weights once, KV and activations of every rank. [devices]"""
        return self._memory(self._bytes + self._weights, self.streams)

    def load(self) -> Floats:
        """Share of each device's time that is spoken for, p99 margin included. [devices]"""
        return self._load(self._mean, self._square, self.streams)

    def _memory(self, used: Floats, streams: Ints) -> Floats:
        return np.asarray(used + np.where(streams > 1, self.shared_bytes, 0.0), dtype=np.float64)

    def _load(self, mean: Floats, square: Floats, streams: Ints) -> Floats:
        stretch = np.where(streams > 1, 1.0 + self.shared_overhead, 1.0)
        return np.asarray((mean + np.sqrt(square)) * stretch, dtype=np.float64)

    def after(self, demand: RankDemand, present: Sequence[int] = ()) -> After:
        """What every device would hold if this rank of a new stream were put there.

        `present`: devices that have other ranks of the stream already.
        """
        keys, tasks = demand.keys, demand.tasks
        count, rate = self._count[:, keys], self._rate[:, keys]
        more, faster = count + tasks, rate + tasks * demand.rate_hz
        new = np.minimum(more, _TABLE)
        old = np.minimum(count, _TABLE)
        average, excess = self._average, self._excess
        mean = self._mean + (faster * average[keys, new] - rate * average[keys, old]).sum(axis=1)
        square = self._square + (
            (faster * excess[keys, new]) ** 2 - (rate * excess[keys, old]) ** 2
        ).sum(axis=1)
        square = np.maximum(square, 0.0)
        weights = self._weights + (count == 0) @ self._weight[keys]
        streams = self.streams + 1
        streams[list(set(present))] -= 1
        return After(
            memory=self._memory(self._bytes + demand.bytes + weights, streams),
            load=self._load(mean, square, streams),
            mean=mean,
            square=square,
            weights=weights,
        )

    def lay(self, demand: RankDemand, device: int, after: After, newcomer: bool) -> Undo:
        """Put a rank down for the time of a search. `lift` with the result takes it up again."""
        undo = (self._mean[device], self._square[device], self._weights[device])
        self._count[device, demand.keys] += demand.tasks
        self._rate[device, demand.keys] += demand.tasks * demand.rate_hz
        self._bytes[device] += demand.bytes
        self._mean[device] = after.mean[device]
        self._square[device] = after.square[device]
        self._weights[device] = after.weights[device]
        self.streams[device] += newcomer
        return undo

    def lift(self, demand: RankDemand, device: int, undo: Undo, newcomer: bool) -> None:
        self._count[device, demand.keys] -= demand.tasks
        rate = self._rate[device]
        rate[demand.keys] -= demand.tasks * demand.rate_hz
        # Subtracting does not quite undo adding; where no task is left, no rate is.
        rate[demand.keys] *= self._count[device, demand.keys] > 0
        self._bytes[device] -= demand.bytes
        self._mean[device], self._square[device], self._weights[device] = undo
        self.streams[device] -= newcomer

    def over(self, devices: Iterable[int]) -> Shortage | None:
        """The worst of these devices that holds more than it has; None where all fit."""
        memory, load = self.memory_used(), self.load()
        limit, most = self.pool.memory_bytes, 1.0 - self.margin
        worst: Shortage | None = None
        for device in devices:
            for resource, excess, share in (
                ("memory", memory[device] - limit, memory[device] / limit - 1.0),
                ("time", load[device] - most, load[device] / most - 1.0),
            ):
                if share > EPS and (worst is None or share > worst.missing_share):
                    worst = Shortage(
                        resource=resource,
                        device=device,
                        rank=-1,
                        missing=float(excess),
                        missing_share=float(share),
                    )
        return worst

    def stranded(self, demand: RankDemand) -> tuple[float, float]:
        """Fragmentation: shares of the pool's memory and time that are free but of no use to this
        rank.
        """
        after = self.after(demand)
        memory, load = after.memory, after.load
        limit = self.pool.memory_bytes
        useless = (memory > limit * (1 + EPS)) | (load > (1.0 - self.margin) * (1 + EPS))
        free_memory = np.maximum(0.0, limit - self.memory_used()) / limit
        free_time = np.maximum(0.0, 1.0 - self.margin - self.load())
        return float((free_memory * useless).mean()), float((free_time * useless).mean())


def _averages(
    low: BatchCost, high: BatchCost, block: int, forming: float
) -> tuple[list[float], list[float]]:
    """Seconds per task by task count 0.._TABLE, median and excess of p99."""
    p50, excess = [0.0], [0.0]
    alone = low.cheapest_s(block, 1)
    for k in range(1, _TABLE + 1):
        batched = low.cheapest_s(block, k) / k
        average = forming * batched + (1.0 - forming) * alone
        p50.append(average)
        excess.append(average * (high.cheapest_s(block, k) / low.cheapest_s(block, k) - 1.0))
    return p50, excess
