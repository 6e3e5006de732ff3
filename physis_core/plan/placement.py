"""Where virtual ranks go: two resources, Best-Fit, and a search that may deviate from it a few
times.

A device has memory, and time: seconds of work per second. Weights of a block count once per device,
whoever runs it. Tasks of one block batch, so each costs what it costs in the largest batch that can
form there (see `forming`); times carry a p99 margin. Best-Fit takes the fullest device that still
fits; where a rank is stuck, Limited Discrepancy Search tries the assignments that deviate from
Best-Fit once, then twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from physis_core.plan.cost import BatchCost
from physis_core.plan.partition import Partition
from physis_core.plan.profile import ModelProfile
from physis_core.plan.topology import Pool
from physis_core.types import UserError

_TABLE = 256
"""Task counts beyond this cost what they cost at it: batches are as large as they get."""

_EPS = 1e-9
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


@dataclass(slots=True)
class _Search:
    """Budget of one search, and the deepest point at which it failed."""

    nodes_left: int
    deepest: int = -1
    placed: list[int] = field(default_factory=list)


class Placement:
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
        self._streams: Ints = np.zeros(devices, dtype=np.int64)
        self._mean: Floats = np.zeros(devices)
        self._square: Floats = np.zeros(devices)
        self._weights: Floats = np.zeros(devices)
        self._hosts: Ints = np.array([pool.host_of(g) for g in range(devices)])
        self.placed: dict[str, tuple[tuple[RankDemand, ...], tuple[int, ...]]] = {}

    def widened(self, more: int) -> Placement:
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
            self._put(demand, device, 1)
        for device in set(devices):
            self._streams[device] += 1
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
            self._put(demand, device, -1)
        for device in set(devices):
            self._streams[device] -= 1

    def _put(self, demand: RankDemand, device: int, sign: int) -> None:
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
        return self._memory(self._bytes + self._weights, self._streams)

    def load(self) -> Floats:
        """Share of each device's time that is spoken for, p99 margin included. [devices]"""
        return self._load(self._mean, self._square, self._streams)

    def _memory(self, used: Floats, streams: Ints) -> Floats:
        return np.asarray(used + np.where(streams > 1, self.shared_bytes, 0.0), dtype=np.float64)

    def _load(self, mean: Floats, square: Floats, streams: Ints) -> Floats:
        stretch = np.where(streams > 1, 1.0 + self.shared_overhead, 1.0)
        return np.asarray((mean + np.sqrt(square)) * stretch, dtype=np.float64)

    def _after(self, demand: RankDemand) -> tuple[Floats, Floats]:
        """Memory and load of every device if a new stream's rank were put there."""
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
        weights = self._weights + (count == 0) @ self._weight[keys]
        streams = self._streams + 1
        memory = self._memory(self._bytes + demand.bytes + weights, streams)
        return memory, self._load(mean, np.maximum(square, 0.0), streams)

    # -- search -----------------------------------------------------------------------------------

    def find(
        self,
        demands: Sequence[RankDemand],
        *,
        discrepancies: int = 2,
        nodes: int = 400,
    ) -> tuple[int, ...] | Shortage:
        """A device for every rank of a stream, or what is missing. The state is left as it was."""
        search = _Search(nodes_left=nodes)
        for allowed in range(discrepancies + 1):
            found = self._extend(demands, (), allowed, search)
            if found is not None:
                return found
            if search.nodes_left <= 0:
                break
        return self._shortage(demands, search)

    def _extend(
        self,
        demands: Sequence[RankDemand],
        chosen: tuple[int, ...],
        allowed: int,
        search: _Search,
    ) -> tuple[int, ...] | None:
        rank = len(chosen)
        if rank == len(demands):
            return chosen
        if search.nodes_left <= 0:
            return None
        search.nodes_left -= 1
        if rank > search.deepest:
            search.deepest, search.placed = rank, list(chosen)
        demand = demands[rank]
        for deviation, device in enumerate(self._candidates(demand, chosen)):
            if deviation > allowed:
                break
            self._put(demand, device, 1)
            fresh = device not in chosen
            if fresh:
                self._streams[device] += 1
            try:
                found = self._extend(demands, (*chosen, device), allowed - deviation, search)
            finally:
                self._put(demand, device, -1)
                if fresh:
                    self._streams[device] -= 1
            if found is not None:
                return found
        return None

    def _candidates(self, demand: RankDemand, chosen: tuple[int, ...]) -> Iterator[int]:
        """Devices that can take this rank, best first; of several alike only one per host."""
        memory, load = self._after(demand)
        limit = self.pool.memory_bytes
        fits = (memory <= limit * (1 + _EPS)) & (load <= (1.0 - self.margin) * (1 + _EPS))
        if not fits.any():
            return
        now_memory, now_load = self.memory_used(), self.load()
        grown = (memory - now_memory) / limit + (load - now_load)
        room = (limit - now_memory) / limit + (1.0 - now_load)
        # The fuller device, and the one on which this rank costs least (weights there, batches
        # form).
        # Spread: the cost comes first, so that weights stand once and every stream uses them.
        best = self.fit == "best"
        score = room + 2.0 * grown if best else 2.0 * grown - 0.02 * room
        if chosen:
            near = self._hosts == self._hosts[chosen[-1]]
            score = score + np.where(near, 0.0, 0.5 if best else 0.01)
            if best:
                score = score - np.where(np.arange(len(score)) == chosen[-1], 0.02, 0.0)
        order = np.argsort(score, kind="stable")
        seen: set[tuple[float, float, int]] = set()
        for device in order:
            if not fits[device]:
                continue
            like = (float(score[device]), float(room[device]), int(self._hosts[device]))
            if like in seen and int(device) not in chosen:
                continue
            seen.add(like)
            yield int(device)

    def _shortage(self, demands: Sequence[RankDemand], search: _Search) -> Shortage:
        """What keeps the rank at which the search got stuck from the device that misses least."""
        rank = max(0, search.deepest)
        for demand, device in zip(demands, search.placed):
            self._put(demand, device, 1)
        try:
            memory, load = self._after(demands[rank])
        finally:
            for demand, device in zip(demands, search.placed):
                self._put(demand, device, -1)
        limit = self.pool.memory_bytes
        over_memory = np.maximum(0.0, memory / limit - 1.0)
        over_time = np.maximum(0.0, load / (1.0 - self.margin) - 1.0)
        device = int(np.argmin(np.maximum(over_memory, over_time)))
        if over_memory[device] >= over_time[device]:
            return Shortage(
                resource="memory",
                device=device,
                rank=rank,
                missing=float(memory[device] - limit),
                missing_share=float(over_memory[device]),
            )
        return Shortage(
            resource="time",
            device=device,
            rank=rank,
            missing=float(load[device] - (1.0 - self.margin)),
            missing_share=float(over_time[device]),
        )

    def stranded(self, demand: RankDemand) -> tuple[float, float]:
        """Fragmentation: shares of the pool's memory and time that are free but of no use to this
        rank.
        """
        memory, load = self._after(demand)
        limit = self.pool.memory_bytes
        useless = (memory > limit * (1 + _EPS)) | (load > (1.0 - self.margin) * (1 + _EPS))
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
