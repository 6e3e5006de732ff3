"""Which rank runs which stage. One mechanism, five maps: a partition is data, not code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from physis_core.types import StageGraph, UserError

PartitionKind = Literal["sequential", "step", "block", "stage", "grouped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """`rank_of[s]` is the virtual rank of stage s; ranks are 0 .. ranks - 1 without gaps."""

    kind: PartitionKind
    graph: StageGraph
    rank_of: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.rank_of) != self.graph.stages:
            raise UserError(
                "rank_of", len(self.rank_of), f"needs one rank per stage, {self.graph.stages}"
            )
        if set(self.rank_of) != set(range(self.ranks)):
            raise UserError("rank_of", sorted(set(self.rank_of)), "ranks must be 0..n-1, no gaps")
        if self.graph.kv == "clean":
            for block in range(self.graph.blocks):
                owners = {
                    self.rank_of[s] for s in range(block, self.graph.stages, self.graph.blocks)
                }
                if len(owners) > 1:
                    raise UserError(
                        "rank_of",
                        sorted(owners),
                        f"clean KV of block {block} is one cache for all steps, so all its steps"
                        " must be on one rank (chunks are serial: splitting gains nothing)",
                    )

    @property
    def ranks(self) -> int:
        return max(self.rank_of) + 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        return tuple(s for s, r in enumerate(self.rank_of) if r == rank)

    def stages_by_rank(self) -> list[tuple[int, ...]]:
        """`stages_of` of every rank, in one go."""
        out: list[list[int]] = [[] for _ in range(self.ranks)]
        for stage, rank in enumerate(self.rank_of):
            out[rank].append(stage)
        return [tuple(stages) for stages in out]

    def blocks_of(self, rank: int) -> tuple[int, ...]:
        """Blocks whose weights this rank must hold, in ascending order."""
        return tuple(sorted({s % self.graph.blocks for s in self.stages_of(rank)}))

    def edges(self) -> tuple[tuple[int, int], ...]:
        """Distinct (source, destination) ranks that a chunk crosses, in order of first use."""
        seen: dict[tuple[int, int], None] = {}
        for a, b in zip(self.rank_of, self.rank_of[1:], strict=False):
            if a != b:
                seen[(a, b)] = None
        return tuple(seen)


def make_partition(
    kind: str, graph: StageGraph, devices: int, costs: Sequence[float] | None = None
) -> Partition:
    """Build the partition `kind` over at most `devices` ranks.

    `costs` are seconds per block (length L; equal where not given), to balance contiguous groups.

    Raises:
        UserError: unknown kind, devices < 1, wrong number of costs.
    """
    if kind not in get_args(PartitionKind):
        raise UserError("partition", kind, f"one of {', '.join(get_args(PartitionKind))}")
    if devices < 1:
        raise UserError("devices", devices, "must be at least 1")
    block_costs = tuple(costs) if costs is not None else (1.0,) * graph.blocks
    if len(block_costs) != graph.blocks:
        raise UserError("costs", len(block_costs), f"needs one per block, {graph.blocks}")
    rank_of: list[int]
    if kind == "sequential":
        rank_of = [0] * graph.stages
    elif kind == "step":
        groups = split_evenly([sum(block_costs)] * graph.passes, devices)
        rank_of = [groups[s // graph.blocks] for s in range(graph.stages)]
    elif kind == "block":
        groups = split_evenly(block_costs, devices)
        rank_of = [groups[s % graph.blocks] for s in range(graph.stages)]
    else:
        groups = split_evenly(block_costs * graph.passes, devices)
        rank_of = list(groups)
    return Partition(kind=kind, graph=graph, rank_of=tuple(rank_of))  # type: ignore[arg-type]


def split_evenly(costs: Sequence[float], groups: int) -> tuple[int, ...]:
    """Cut a row of costs into at most `groups` contiguous groups; the largest sum is smallest.

    Returns the group of each element. Exact: bisects on the largest sum, greedy feasibility check.
    """
    groups = min(groups, len(costs))

    def cut(limit: float) -> list[int]:
        out, group, total = [], 0, 0.0
        for i, cost in enumerate(costs):
            must_open = len(costs) - i == groups - 1 - group and i > 0
            if i > 0 and (total + cost > limit * (1 + 1e-12) or must_open):
                group, total = group + 1, 0.0
            total += cost
            out.append(group)
        return out

    low, high = max(costs), sum(costs)
    for _ in range(60):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if cut(middle)[-1] < groups:
            high = middle
        else:
            low = middle
    return tuple(cut(high))
