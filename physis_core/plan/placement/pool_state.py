"""What a pool of devices carries: memory, and time as the cost of batches that form.

Weights of a block count once per device, whichever stream runs it. Tasks of one block
batch, so each costs what it costs in the largest batch that can form; times carry a p99 margin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from physis_core.deployment.profile import ModelProfile
from physis_core.deployment.topology import Pool
from physis_core.plan.placement.demands import TABLE, BlockTables, Floats, Ints, RankDemand
from physis_core.types import UserError

EPS = 1e-9
Fit = Literal["best", "spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why a rank fits nowhere: `resource` is `memory` or `time`, on the device that lacks least."""

    resource: str
    device: int
    rank: int
    missing: float
    missing_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """These devices with one more rank: memory, load, and the sums that these come from.

    All arrays are in the order of `devices`.
    """

    devices: Ints
    memory: Floats
    load: Floats
    mean: Floats
    square: Floats
    weights: Floats

    def sums(self) -> tuple[Floats, ...]:
        return self.memory, self.load, self.mean, self.square, self.weights


_BY_DEVICE = (
    "_count",
    "_rate",
    "_bytes",
    "_weights",
    "streams",
    "_mean",
    "_square",
    "_memory_now",
    "_load_now",
)
State = TypeVar("State", bound="PoolState")


class PoolState:
    """The pool and its streams. Streams are added and removed whole; none moves.

    Args:
        models: every model that a stream may request, by name.
        max_batch: largest batch of the devices.
        margin: share of each device's time that stays free.
        shared_overhead: extra share of a task's time on a device that several streams share.
        shared_bytes: memory that a device needs besides, once more than one stream is on it.
        fit: `best` fills devices one after the other; `spread` puts each block's weights on as few
            devices as it can, and the ranks of a stream on many.
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
        fit: Fit = "best",
    ) -> None:
        if not 0.0 <= margin < 1.0:
            raise UserError("margin", margin, "must be in [0, 1)")
        self.pool = pool
        self.margin = margin
        self.shared_overhead = shared_overhead
        self.shared_bytes = shared_bytes
        self.fit = fit
        self.tables = BlockTables(models, max_batch)
        devices, keys = pool.devices, len(self.tables.weight)
        # By device and block: tasks each period, and their rate.
        self._count: Ints = np.zeros((devices, keys), dtype=np.int64)
        self._rate: Floats = np.zeros((devices, keys))
        # By device: bytes besides weights, weights, streams, and the two sums of the load.
        self._bytes: Floats = np.zeros(devices)
        self._weights: Floats = np.zeros(devices)
        self.streams: Ints = np.zeros(devices, dtype=np.int64)
        self._mean: Floats = np.zeros(devices)
        self._square: Floats = np.zeros(devices)
        # Derived from these, and kept up to date.
        self._memory_now: Floats = np.zeros(devices)
        self._load_now: Floats = np.zeros(devices)
        self.hosts: Ints = np.array([pool.host_of(g) for g in range(devices)])
        self.placed: dict[str, tuple[tuple[RankDemand, ...], tuple[int, ...]]] = {}

    def widened(self: State, more: int) -> State:
        """The same streams in a pool with `more` further, empty devices."""
        wider = copy(self)
        wider.pool = replace(self.pool, devices=self.pool.devices + more)
        for name in _BY_DEVICE:
            own: npt.NDArray[np.generic] = getattr(self, name)
            empty = np.zeros((more, *own.shape[1:]), dtype=own.dtype)
            setattr(wider, name, np.concatenate([own, empty]))
        wider.hosts = np.array([wider.pool.host_of(g) for g in range(wider.pool.devices)])
        wider.placed = dict(self.placed)
        return wider

    def add(self, stream_id: str, demands: Sequence[RankDemand], devices: Sequence[int]) -> None:
        self._change(demands, devices, 1)
        self.placed[stream_id] = (tuple(demands), tuple(devices))

    def empty(self) -> tuple[int, ...]:
        """Devices without a stream."""
        return tuple(np.flatnonzero(self.streams == 0).tolist())

    def growth(self, demands: Sequence[RankDemand], devices: Sequence[int]) -> float:
        """Devices' worth of memory and time that this stream would take there, weights included."""
        before = self._used()
        self._change(demands, devices, 1)
        after = self._used()
        self._change(demands, devices, -1)
        return after - before

    def _used(self) -> float:
        return float(self.memory_used().sum() / self.pool.memory_bytes + self.load().sum())

    def remove(self, stream_id: str) -> None:
        self._change(*self.placed.pop(stream_id), -1)

    def _change(self, demands: Sequence[RankDemand], devices: Sequence[int], sign: int) -> None:
        for demand, device in zip(demands, devices):
            self._put(demand, device, sign)
        for device in set(devices):
            self.streams[device] += sign
            self._sum_up(device)

    def _put(self, demand: RankDemand, device: int, sign: int) -> None:
        """`_sum_up` must follow."""
        keys = demand.keys
        self._count[device, keys] += sign * demand.tasks
        self._rate[device, keys] += sign * demand.tasks * demand.rate_hz
        self._bytes[device] += sign * demand.bytes

    def _sum_up(self, device: int) -> None:
        count, rate = self._count[device], self._rate[device]
        # Recomputed from all blocks: differences would drift as streams come and go.
        every = np.flatnonzero(count)
        batch = np.minimum(count[every], TABLE)
        tables = self.tables
        self._mean[device] = rate[every] @ tables.average[every, batch]
        self._square[device] = ((rate[every] * tables.excess[every, batch]) ** 2).sum()
        self._weights[device] = tables.weight[every].sum()
        only = slice(device, device + 1)
        streams = self.streams[only]
        self._memory_now[only] = self._memory(self._bytes[only] + self._weights[only], streams)
        self._load_now[only] = self._load(self._mean[only], self._square[only], streams)

    def memory_used(self) -> Floats:
        """Bytes by device: weights once, KV and activations of every rank. Not a copy. [devices]"""
        return self._memory_now

    def load(self) -> Floats:
        """Share of each device's time that is in use, p99 margin included. Not a copy.
        [devices]
        """
        return self._load_now

    def _memory(self, used: Floats, streams: Ints) -> Floats:
        if not self.shared_bytes:
            return used
        more: Floats = used + np.where(streams > 1, self.shared_bytes, 0.0)
        return more

    def _load(self, mean: Floats, square: Floats, streams: Ints) -> Floats:
        load: Floats = mean + np.sqrt(square)
        if not self.shared_overhead:
            return load
        stretched: Floats = load * np.where(streams > 1, 1.0 + self.shared_overhead, 1.0)
        return stretched

    def after(
        self, demand: RankDemand, present: Sequence[int] = (), *, fitting: bool = False
    ) -> After:
        """What every device would hold with this rank of a new stream.

        `present`: devices that already have other ranks of the stream. `fitting`: leave out devices
        that lack the memory.
        """
        keys, tasks = demand.keys, demand.tasks
        streams = self.streams + 1
        streams[list(set(present))] -= 1
        count = self._count.take(keys, axis=1)
        weights = self._weights + (count == 0) @ self.tables.weight[keys]
        memory = self._memory(self._bytes + demand.bytes + weights, streams)
        rate, mean, square = self._rate, self._mean, self._square
        if fitting:
            devices = np.flatnonzero(memory <= self.pool.memory_bytes * (1 + EPS))
            memory, weights, streams = memory[devices], weights[devices], streams[devices]
            count, rate = count[devices], rate[devices]
            mean, square = mean[devices], square[devices]
        else:
            devices = np.arange(len(memory))
        rate = rate.take(keys, axis=1)
        faster = rate + tasks * demand.rate_hz
        # Row-major places in the tables: `take` is much faster than two indices.
        rows = keys * (TABLE + 1)
        new = np.minimum(count + tasks, TABLE) + rows
        old = np.minimum(count, TABLE) + rows
        average, excess = self.tables.average.take, self.tables.excess.take
        mean = mean + (faster * average(new) - rate * average(old)).sum(axis=1)
        more, less = faster * excess(new), rate * excess(old)
        square = np.maximum(square + (more * more - less * less).sum(axis=1), 0.0)
        return After(
            devices=devices,
            memory=memory,
            load=self._load(mean, square, streams),
            mean=mean,
            square=square,
            weights=weights,
        )

    def over(self, devices: Iterable[int]) -> Shortage | None:
        """The most overloaded of these devices; None where all fit."""
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
        """Fragmentation: shares of the pool's memory and time that are free but unusable for this
        rank.
        """
        after = self.after(demand)
        memory, load = after.memory, after.load
        limit = self.pool.memory_bytes
        useless = (memory > limit * (1 + EPS)) | (load > (1.0 - self.margin) * (1 + EPS))
        free_memory = np.maximum(0.0, limit - self.memory_used()) / limit
        free_time = np.maximum(0.0, 1.0 - self.margin - self.load())
        return float((free_memory * useless).mean()), float((free_time * useless).mean())
