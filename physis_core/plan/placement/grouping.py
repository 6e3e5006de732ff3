"""Which stages form one rank: the period table over device counts, and its Pareto front.

A grouping cuts the D passes into contiguous groups, and within each group the L blocks into
contiguous ranges; each rank then holds one range of blocks for the passes of its group, so that one
copy of the weights serves them all and their tasks batch. `step` (D groups, one range), `block`
(one group, L ranges) and `stage` (D x L ranks) are its extremes. Contiguous cuts of the sequence of
stages are considered too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from physis_core.deployment.profile import ModelProfile
from physis_core.deployment.topology import Pool
from physis_core.pipeline.partition import Partition, PartitionKind, make_partition, split_evenly
from physis_core.plan.placement.cost import RankCost, rank_bytes
from physis_core.types import UserError

_ALL_SPLITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One way to run one stream, and what it achieves. Seconds and bytes.

    `alone_s` is the share of the busiest device in each period when every batch is one task.
    `interval_s` is the shortest output interval with p99 margin; `response_s` is observation entry
    to completion when the stream runs at that interval, `relaxed_response_s` when the period leaves
    room for batches of one. `memory_bytes` is that of the fullest device.
    """

    shape: str
    partition: Partition
    interval_s: float
    interval_p50_s: float
    response_s: float
    relaxed_response_s: float
    alone_s: float
    memory_bytes: float
    total_bytes: float
    work_s: float
    devices: int

    def device_seconds_per_output(self, period_s: float, per_chunk: float) -> float:
        """Device-seconds per on-time output when the stream runs at `period_s`."""
        return self.devices * period_s / per_chunk


def compositions(total: int) -> list[tuple[int, ...]]:
    """All ways to write `total` as a row of positive numbers."""
    if total == 0:
        return [()]
    return [(first, *rest) for first in range(1, total + 1) for rest in compositions(total - first)]


def splits_of(passes: int) -> list[tuple[int, ...]]:
    """Ways to cut the passes into contiguous groups: all of them for few passes, and for many those
    whose groups differ by at most one pass, the larger ones first or last. All would be
    2^(passes - 1).
    """
    if passes <= _ALL_SPLITS:
        return compositions(passes)
    found: dict[tuple[int, ...], None] = {}
    for groups in range(1, passes + 1):
        size, larger = divmod(passes, groups)
        split = (size + 1,) * larger + (size,) * (groups - larger)
        found[split] = None
        found[split[::-1]] = None
    return list(found)


class Planner:
    """Period table of one model on one pool.

    `hop_s` is what one hop between neighbouring ranks costs a chunk; transfers overlap with
    compute, so a hop adds to the response, and bounds the interval only by its own length.
    """

    def __init__(self, profile: ModelProfile, pool: Pool, *, max_batch: int = 16) -> None:
        self.profile = profile
        self.pool = pool
        self.max_batch = max_batch
        self._cost = RankCost(profile, max_batch)
        self._costs = [self._cost.stage_s(b, 1) for b in range(profile.blocks)]
        exits = range(profile.graph.exit_index + 1)
        self._alone_s = sum(self._cost.stage_s(s, 1) for s in exits)
        self._alone_p99_s = sum(self._cost.stage_s(s, 1, p99=True) for s in exits)
        near = pool.fast if pool.devices_per_host > 1 else pool.slow
        self._hop_s = near.delay_s(profile.hidden_bytes)
        self._transfer_s = profile.hidden_bytes / near.bandwidth_bytes_s
        self._table: dict[int, list[Plan]] = {}
        self._cuts: dict[int, tuple[int, ...]] = {}

    def candidates(self, devices: int) -> list[Plan]:
        """Every grouping considered for exactly `devices` devices that fits in memory."""
        known = self._table.get(devices)
        if known is None:
            known = self._table[devices] = self._candidates(devices)
        return known

    def _candidates(self, devices: int) -> list[Plan]:
        graph = self.profile.graph
        if not 1 <= devices <= graph.stages:
            return []
        plans: dict[tuple[int, ...], Plan] = {}
        splits = splits_of(graph.passes)
        if graph.kv == "clean":
            # One cache per block serves all passes, so they cannot be separated.
            splits = [(graph.passes,)]
        for split in splits:
            ranges = self._share(split, devices)
            if ranges is not None:
                self._add(plans, _shape(split, ranges), self._grid(split, ranges))
        if graph.kv == "noisy":
            row = make_partition("grouped", graph, devices, self._costs)
            if row.ranks == devices:
                self._add(plans, "row", row)
        return sorted(plans.values(), key=lambda plan: (plan.interval_s, plan.response_s))

    def _share(self, split: tuple[int, ...], devices: int) -> list[int] | None:
        """Devices of each group of passes that make the slowest group as fast as possible; None:
        impossible.
        """
        blocks = self.profile.blocks
        if not len(split) <= devices <= len(split) * blocks:
            return None
        ranges = [1] * len(split)
        work = [sum(self._cost.stage_s(b, size) for b in range(blocks)) for size in split]
        for _ in range(devices - len(split)):
            open_ = [i for i in range(len(split)) if ranges[i] < blocks]
            slowest = max(open_, key=lambda i: work[i] / ranges[i])
            ranges[slowest] += 1
        return ranges

    def _cut(self, groups: int) -> tuple[int, ...]:
        known = self._cuts.get(groups)
        if known is None:
            known = self._cuts[groups] = split_evenly(self._costs, groups)
        return known

    def _grid(self, split: tuple[int, ...], ranges: Sequence[int]) -> Partition:
        graph = self.profile.graph
        rank_of: list[int] = []
        first = 0
        for size, count in zip(split, ranges, strict=True):
            cut = self._cut(count)
            for _ in range(size):
                rank_of.extend(first + group for group in cut)
            first += count
        kind: PartitionKind = "grouped"
        if len(rank_of) and max(rank_of) == 0:
            kind = "sequential"
        return Partition(kind=kind, graph=graph, rank_of=tuple(rank_of))

    def _add(self, plans: dict[tuple[int, ...], Plan], shape: str, partition: Partition) -> None:
        plan = self.evaluate(partition, shape)
        if plan.memory_bytes <= self.pool.memory_bytes and partition.rank_of not in plans:
            plans[partition.rank_of] = plan

    def evaluate(self, partition: Partition, shape: str) -> Plan:
        """What a partition achieves, whether it fits or not."""
        graph, profile = self.profile.graph, self.profile
        ranks = partition.stages_by_rank()
        costs = [self._cost.rank(stages) for stages in ranks]
        batch_of: dict[int, int] = {}
        for stages in ranks:
            count: dict[int, int] = {}
            for stage in stages:
                count[stage % graph.blocks] = count.get(stage % graph.blocks, 0) + 1
            for stage in stages:
                batch_of[stage] = count[stage % graph.blocks]
        exits = graph.exit_index + 1
        hops = sum(
            a != b for a, b in zip(partition.rank_of[: exits - 1], partition.rank_of[1:exits])
        )
        relaxed_s = self._alone_s + hops * self._hop_s
        if graph.kv == "clean":
            # Chunks are serial: one enters block 0 when the previous one has left it in the clean
            # pass.
            again_s = self._cost.stage_s(0, 1) + (hops > 0) * self._hop_s
            tail_s = self._alone_p99_s - self._alone_s
            interval_p50_s = max(relaxed_s + again_s, *(single for single, *_ in costs))
            interval_s, response_s = interval_p50_s + tail_s, relaxed_s
        else:
            interval_s = max(batched_p99 for *_, batched_p99 in costs)
            interval_p50_s = max(batched for _, _, batched, _ in costs)
            if partition.ranks > 1:
                interval_s = max(interval_s, self._transfer_s)
                interval_p50_s = max(interval_p50_s, self._transfer_s)
            response_s = (
                sum(self._cost.stage_s(s, batch_of[s]) for s in range(exits)) + hops * self._hop_s
            )
        memory = [sum(rank_bytes(profile, s, self.max_batch)) for s in ranks]
        return Plan(
            shape=shape,
            partition=partition,
            interval_s=interval_s,
            interval_p50_s=interval_p50_s,
            response_s=response_s,
            relaxed_response_s=relaxed_s,
            alone_s=max(single_p99 for _, single_p99, *_ in costs),
            memory_bytes=max(memory),
            total_bytes=sum(memory),
            work_s=sum(batched_p99 for *_, batched_p99 in costs),
            devices=partition.ranks,
        )

    def period_table(self, most: int) -> list[Plan]:
        """For each device count up to `most`, the grouping with the shortest interval that fits."""
        rows = []
        for devices in range(1, min(most, self.profile.graph.stages) + 1):
            found = self.candidates(devices)
            if found:
                rows.append(found[0])
        return rows

    def shortest_interval(self, devices: int) -> Plan:
        """Raises UserError where nothing fits on so many devices."""
        found = [plan for n in range(1, devices + 1) for plan in self.candidates(n)]
        if not found:
            raise UserError("devices", devices, self.too_small(devices))
        return min(found, key=lambda plan: (plan.interval_s, plan.devices))

    def fewest_devices(self, period_s: float, max_response_s: float, most: int) -> Plan | None:
        """The smallest grouping that keeps the period and the response bound, if any."""
        for devices in range(1, min(most, self.profile.graph.stages) + 1):
            fitting = self.fitting(devices, period_s, max_response_s)
            if fitting:
                return fitting[0]
        return None

    def shortest_response(self, period_s: float, most: int) -> Plan | None:
        """Of all that keep the period, the one with the shortest response."""
        found = [
            plan
            for devices in range(1, min(most, self.profile.graph.stages) + 1)
            for plan in self.fitting(devices, period_s, float("inf"))
        ]
        return min(found, key=lambda p: (self.response_at(p, period_s), p.devices), default=None)

    def fitting(self, devices: int, period_s: float, max_response_s: float) -> list[Plan]:
        """Groupings of exactly `devices` devices that keep both, shortest interval first."""
        return [
            plan
            for plan in self.candidates(devices)
            if plan.interval_s <= period_s and self.response_at(plan, period_s) <= max_response_s
        ]

    def response_at(self, plan: Plan, period_s: float) -> float:
        """Response at this period: batches of one where the period has room for them."""
        return plan.relaxed_response_s if plan.alone_s <= period_s else plan.response_s

    def too_small(self, devices: int) -> str:
        """Why nothing fits on so many devices."""
        stages = self.profile.graph.stages
        least = min(
            self.evaluate(make_partition(kind, self.profile.graph, devices), kind).memory_bytes
            for kind in (("block",) if self.profile.kv == "clean" else ("block", "grouped"))
        )
        return (
            f"{self.profile.name} needs {least / 2**30:.1f} GiB on a device when divided over"
            f" {min(devices, stages)}, and a device has {self.pool.memory_bytes / 2**30:.1f} GiB"
        )


def pareto(plans: Sequence[Plan]) -> list[Plan]:
    """Plans that no other one beats in interval, response, devices, memory and device-seconds
    (devices times interval) together.
    """

    def measures(plan: Plan) -> tuple[float, ...]:
        return (
            plan.interval_s,
            plan.response_s,
            float(plan.devices),
            plan.memory_bytes,
            plan.devices * plan.interval_s,
        )

    scored = [(measures(plan), plan) for plan in plans]
    return [
        plan
        for mine, plan in scored
        if not any(
            other != mine and all(o <= m for o, m in zip(other, mine)) for other, _ in scored
        )
    ]


def _shape(split: tuple[int, ...], ranges: Sequence[int]) -> str:
    """Such as `2x15 + 2x15`: two passes over 15 ranges of blocks, then two more."""
    return " + ".join(f"{size}x{count}" for size, count in zip(split, ranges))
