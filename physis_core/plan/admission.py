"""Streams are admitted whole or not at all: placement first, then a simulation in which every
admitted stream keeps its period.

An admitted stream never moves. A refusal is a value that names the resource that is short, on which
device, and the nearest period or device count that would fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from physis_core.pipeline.partition import Partition
from physis_core.plan.advice import nearest, no_grouping
from physis_core.plan.feasibility import Feasibility, refusal
from physis_core.plan.placement.demands import RankDemand
from physis_core.plan.requests import Admitted, Place, StreamRequest
from physis_core.types import Refused, UserError


@dataclass(slots=True)
class Admission(Feasibility):
    """Which streams are open in a pool. Not thread-safe: one owner."""

    _smallest: RankDemand | None = field(init=False, default=None)

    def request(self, request: StreamRequest) -> Admitted | Refused:
        """Admit the stream whole, or say why not. Nothing else changes."""
        if request.model not in self.models:
            raise UserError("model", request.model, f"must be one of {', '.join(self.models)}")
        if request.stream_id in self.admitted:
            raise UserError("stream_id", request.stream_id, "is open already")
        if not self.groupings(request.model, request.slo, self.pool):
            return no_grouping(self, request)
        decision = self.decide(request, self.placement)
        if isinstance(decision, Place):
            self._enter(decision.admitted, decision.demands)
            return decision.admitted
        advice = ""
        if self.policy.advise:
            advice = nearest(self, request, crowded=decision.check is not None)
        return refusal(self.pool, decision.shortage, decision.check, advice)

    def request_at(
        self, request: StreamRequest, partition: Partition, devices: Sequence[int]
    ) -> Admitted | Refused:
        """Admit the stream with this partition on exactly these devices, or say why not."""
        outcome = self.check_at(request, partition, devices)
        if isinstance(outcome, Admitted):
            self._enter(outcome, self.demands_of(request, partition))
        return outcome

    def leave(self, stream_id: str) -> None:
        """The stream has ended; its resources are free.

        Raises:
            KeyError: no such stream.
        """
        del self.admitted[stream_id], self._placed[stream_id]
        self.placement.remove(stream_id)

    def fragmentation(self) -> tuple[float, float]:
        """Shares of the pool's memory and time that are free, but unusable for the smallest rank
        seen.
        """
        if self._smallest is None:
            return 0.0, 0.0
        return self.placement.stranded(self._smallest)

    def _enter(self, admitted: Admitted, demands: tuple[RankDemand, ...]) -> None:
        self.placement.add(admitted.request.stream_id, demands, admitted.devices)
        self.admitted[admitted.request.stream_id] = admitted
        self._placed[admitted.request.stream_id] = admitted.placed
        for demand in demands:
            if self._smallest is None or demand.bytes < self._smallest.bytes:
                self._smallest = demand
