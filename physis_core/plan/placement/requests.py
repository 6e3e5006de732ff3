"""What a stream asks for, what it gets, and how careful admission is."""

from __future__ import annotations

from dataclasses import dataclass

from physis_core.plan.coarse import PlacedStream, Verdict
from physis_core.plan.placement.demands import RankDemand
from physis_core.plan.placement.grouping import Plan
from physis_core.plan.placement.search import Fit, Shortage
from physis_core.plan.slo import Slo


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
    """Where a stream would stand, as placement found it and simulation confirmed it."""

    admitted: Admitted
    demands: tuple[RankDemand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlace:
    """What placement missed, or else what failed in simulation."""

    shortage: Shortage | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How careful admission is.

    `groupings`: how many groupings of a stream are tried, smallest first, until `compared` of them
    fit; `most_devices` of one stream. `verify`: simulate before admitting. `advise`: look for the
    nearest SLO and device count on refusal. `alone`: a stream that fails in simulation wherever it
    shares takes empty devices, if there are any. `margin`, `shared_overhead`, `shared_bytes`,
    `fit`, `forming`: see `Placement`.
    """

    max_batch: int = 16
    margin: float = 0.15
    shared_overhead: float = 0.0
    shared_bytes: float = 0.0
    groupings: int = 8
    most_devices: int = 24
    discrepancies: int = 2
    nodes: int = 40
    compared: int = 3
    verify: bool = True
    advise: bool = True
    alone: bool = True
    verify_periods: int = 1
    verifications: int = 2
    stop_at_refusal: bool = False
    fit: Fit = "best"
    forming: float = 1.0
    eager_batching: bool = False
