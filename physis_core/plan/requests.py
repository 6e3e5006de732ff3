"""What a stream asks for, what it gets, and how careful admission is."""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.deployment.slo import Slo
from physis_core.plan.placement.demands import RankDemand
from physis_core.plan.placement.grouping import Plan
from physis_core.plan.placement.search import Fit, Shortage
from physis_core.plan.slo_check import PlacedStream, SloCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What a stream asks for. A larger `priority` is more important."""

    stream_id: str
    model: str
    slo: Slo
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A stream with its grouping and its place: `devices[r]` runs rank r."""

    request: StreamRequest
    plan: Plan
    devices: tuple[int, ...]

    @property
    def placed(self) -> PlacedStream:
        return PlacedStream(
            stream_id=self.request.stream_id,
            model=self.request.model,
            blocks=self.plan.partition.graph.blocks,
            device_of=tuple(self.devices[r] for r in self.plan.partition.rank_of),
            period_s=self.request.slo.period_s,
            priority=self.request.priority,
            max_response_s=self.request.slo.max_response_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stream can run, as placement found it and simulation confirmed it."""

    admitted: Admitted
    demands: tuple[RankDemand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlace:
    """Why there is no place: what placement lacked, or what failed in simulation."""

    shortage: Shortage | None
    check: SloCheck | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """How careful admission is, and how long it searches.

    `groupings`: how many groupings of a stream are tried, smallest first; `nodes`: placements tried
    for each; `most_devices` of one stream. `verify`: simulate before admitting. `advise`: look for
    the nearest SLO and device count on refusal. `alone`: a stream that fails in simulation wherever
    it shares takes empty devices, if there are any. `margin`, `shared_overhead`, `shared_bytes`,
    `fit`: see `PoolState`.
    """

    max_batch: int = 16
    margin: float = 0.15
    shared_overhead: float = 0.0
    shared_bytes: float = 0.0
    fit: Fit = "best"
    eager_batching: bool = False
    groupings: int = 8
    nodes: int = 40
    most_devices: int = 24
    verify: bool = True
    advise: bool = True
    alone: bool = True
    stop_at_refusal: bool = False
