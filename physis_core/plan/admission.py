"""Whole streams or none: placement first, then a simulation that every admitted stream keeps its
period.

What was admitted never moves. A refusal is a value that names the resource that is short, on which
device, and the nearest period or device count that would fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from physis_core.deployment.topology import Pool
from physis_core.pipeline.partition import Partition
from physis_core.plan.advice import nearest, no_grouping, refusal, too_slow
from physis_core.plan.coarse import PlacedStream, RunCosts, Verdict, component, keeps_slo
from physis_core.plan.placement.cost import RankCost
from physis_core.plan.placement.demands import RankDemand
from physis_core.plan.placement.grouping import Plan, Planner
from physis_core.plan.placement.requests import Admitted, NoPlace, Place, Policy, StreamRequest
from physis_core.plan.placement.search import Placement, Shortage
from physis_core.plan.profile import ModelProfile
from physis_core.plan.slo import Slo
from physis_core.types import Refused, UserError

__all__ = ["Admission", "Admitted", "Policy", "StreamRequest"]


@dataclass(slots=True)
class Admission:
    """The pool's door. Not thread-safe: one owner.

    `preferred`: by model, the number of the grouping that is tried first, and taken where it fits.
    `planners`: by model, made here where not given; their tables outlive this admission.
    """

    pool: Pool
    models: Mapping[str, ModelProfile]
    policy: Policy = field(default_factory=Policy)
    preferred: Mapping[str, int] = field(default_factory=dict)
    planners: Mapping[str, Planner] = field(default_factory=dict)
    admitted: dict[str, Admitted] = field(default_factory=dict)
    placement: Placement = field(init=False)
    _placed: dict[str, PlacedStream] = field(init=False, default_factory=dict)
    _groupings: dict[tuple[str, float, float, int], list[Plan]] = field(
        init=False, default_factory=dict
    )
    _run_costs: RunCosts = field(init=False)
    _smallest: RankDemand | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        policy = self.policy
        self.placement = Placement(
            self.pool,
            self.models,
            max_batch=policy.max_batch,
            margin=policy.margin,
            shared_overhead=policy.shared_overhead,
            shared_bytes=policy.shared_bytes,
            fit=policy.fit,
            forming=policy.forming,
        )
        self._run_costs = RunCosts(self.models, policy.max_batch)
        if not self.planners:
            self.planners = {
                name: Planner(profile, self.pool, max_batch=policy.max_batch)
                for name, profile in self.models.items()
            }
        # No decision waits for a table.
        for name, planner in self.planners.items():
            for devices in range(1, self._most_devices(name, self.pool) + 1):
                planner.candidates(devices)

    # -- the door ---------------------------------------------------------------------------------

    def request(self, request: StreamRequest) -> Admitted | Refused:
        """Admit the stream whole, or say why not. Nothing else changes."""
        if request.model not in self.models:
            raise UserError("model", request.model, f"one of {', '.join(self.models)}")
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
            advice = nearest(self, request, crowded=decision.verdict is not None)
        return refusal(self.pool, decision.shortage, decision.verdict, advice)

    def decide(self, request: StreamRequest, placement: Placement) -> Place | NoPlace:
        """What `request` does, in this state of the pool or of a wider one. Nothing changes."""
        groupings = self.groupings(request.model, request.slo, placement.pool)
        shortage: Shortage | None = None
        found: list[tuple[float, int, Place]] = []
        preferred = self.preferred.get(request.model)
        if preferred is not None and groupings:
            groupings = [groupings[preferred % len(groupings)], *groupings]
        for number, plan in enumerate(groupings):
            demands = self.demands_of(request, plan.partition)
            devices = placement.find(
                demands,
                discrepancies=self.policy.discrepancies,
                nodes=max(self.policy.nodes, len(demands) + 8),
            )
            if isinstance(devices, Shortage):
                if shortage is None or devices.missing_share < shortage.missing_share:
                    shortage = devices
                continue
            admitted = Admitted(request=request, plan=plan, devices=devices)
            growth = placement.growth(demands, devices)
            found.append((round(growth, 6), number, Place(admitted=admitted, demands=demands)))
            if preferred is not None or len(found) == self.policy.compared:
                break
        verdict: Verdict | None = None
        # The one that leaves most for others; of equal ones the one with the fewest devices.
        ranked = sorted(found, key=lambda entry: entry[:2])[: self.policy.verifications]
        if found and found[0] not in ranked:
            # The one that advice tries: what it offers must be admitted.
            ranked[-1] = found[0]
        for _, _, place in ranked:
            verdict = self._verify(place.admitted, placement.pool)
            if verdict is None or verdict.kept:
                return place
        alone = self.alone(request, placement) if found and self.policy.alone else None
        if alone is not None and self.keeps(alone, placement.pool):
            demands = self.demands_of(request, alone.plan.partition)
            return Place(admitted=alone, demands=demands)
        return NoPlace(shortage=shortage, verdict=verdict)

    def request_at(
        self, request: StreamRequest, partition: Partition, devices: Sequence[int]
    ) -> Admitted | Refused:
        """Admit the stream with this partition on these very devices, or say why not."""
        outcome = self.would_take_at(request, partition, devices)
        if isinstance(outcome, Admitted):
            self._enter(outcome, self.demands_of(request, partition))
        return outcome

    def would_take_at(
        self, request: StreamRequest, partition: Partition, devices: Sequence[int]
    ) -> Admitted | Refused:
        """What `request_at` would say. Nothing changes."""
        plan = self.planners[request.model].evaluate(partition, "given")
        period_s, bound_s = request.slo.period_s, request.slo.max_response_s
        if plan.interval_s > period_s * (1.0 - self.policy.margin):
            return Refused(
                reason=f"the route's slowest rank takes {plan.interval_s * 1e3:.4g} ms (p99)",
                short_resource="time",
                device=self.pool.name_of(devices[self._slowest(request.model, plan)]),
            )
        if plan.relaxed_response_s > bound_s:
            return too_slow(plan.relaxed_response_s, bound_s)
        self.placement.add(request.stream_id, self.demands_of(request, partition), devices)
        shortage = self.placement.over(set(devices))
        self.placement.remove(request.stream_id)
        admitted = Admitted(request=request, plan=plan, devices=tuple(devices))
        verdict = self._verify(admitted, self.pool) if shortage is None else None
        if shortage is None and (verdict is None or verdict.kept):
            return admitted
        return refusal(self.pool, shortage, verdict)

    def _slowest(self, model: str, plan: Plan) -> int:
        """Rank that sets the interval."""
        cost = RankCost(self.models[model], self.policy.max_batch)
        stages = plan.partition.stages_by_rank()
        return max(range(len(stages)), key=lambda r: cost.rank_s(stages[r], p99=True))

    def leave(self, stream_id: str) -> None:
        """The stream is gone; what it held is free.

        Raises:
            KeyError: no such stream.
        """
        del self.admitted[stream_id], self._placed[stream_id]
        self.placement.remove(stream_id)

    def fragmentation(self) -> tuple[float, float]:
        """Shares of the pool's memory and time that are free and yet of no use to the smallest rank
        seen.
        """
        if self._smallest is None:
            return 0.0, 0.0
        return self.placement.stranded(self._smallest)

    # -- inside -----------------------------------------------------------------------------------

    def groupings(self, model: str, slo: Slo, pool: Pool) -> list[Plan]:
        """Groupings that keep the SLO by themselves in this pool, smallest first."""
        most = self._most_devices(model, pool)
        key = (model, slo.period_s, slo.max_response_s, most)
        known = self._groupings.get(key)
        if known is None:
            planner = self.planners[model]
            usable = slo.period_s * (1.0 - self.policy.margin)
            known = []
            devices, least = 1, 0
            while devices <= most and len(known) < self.policy.groupings:
                fitting = planner.fitting(devices, usable, slo.max_response_s)
                if fitting:
                    known.append(min(fitting, key=lambda plan: self._appetite(plan, slo)))
                if fitting and not least:
                    least = devices
                # Close together where the stream just fits, then ever wider apart: many small ranks
                # fill what few large ones leave.
                near = not least or devices < least + 2
                last = len(known) == self.policy.groupings - 1 and devices < most
                step = devices + 1 if near else math.ceil(devices * 1.5)
                devices = most if last or devices < most < step else step
            self._groupings[key] = known
        return known

    def _most_devices(self, model: str, pool: Pool) -> int:
        """Ranks of the finest grouping that is tried; several may stand on one device."""
        most = min(self.policy.most_devices, pool.devices)
        return max(most, self.models[model].blocks)

    def _appetite(self, plan: Plan, slo: Slo) -> float:
        """Devices' worth of memory and time that a stream takes, when it is alone."""
        return plan.total_bytes / self.pool.memory_bytes + plan.work_s / slo.period_s

    def _enter(self, admitted: Admitted, demands: tuple[RankDemand, ...]) -> None:
        self.placement.add(admitted.request.stream_id, demands, admitted.devices)
        self.admitted[admitted.request.stream_id] = admitted
        self._placed[admitted.request.stream_id] = admitted.placed
        for demand in demands:
            if self._smallest is None or demand.bytes < self._smallest.bytes:
                self._smallest = demand

    def alone(self, request: StreamRequest, placement: Placement) -> Admitted | None:
        """The smallest grouping on devices that nobody uses, if there are so many.

        Best-Fit prefers full devices; where it shares with too many, these are left.
        """
        groupings = self.groupings(request.model, request.slo, placement.pool)
        empty = placement.empty()
        if not groupings or groupings[0].devices > len(empty):
            return None
        devices = empty[: groupings[0].devices]
        return Admitted(request=request, plan=groupings[0], devices=devices)

    def keeps(self, newcomer: Admitted, pool: Pool) -> bool:
        """Whether the stream keeps its SLO at this place, and nobody beside it loses its own."""
        verdict = self._verify(newcomer, pool)
        return verdict is None or verdict.kept

    def _verify(self, newcomer: Admitted, pool: Pool) -> Verdict | None:
        """Simulate the newcomer with all who share a device with it, directly or not."""
        if not self.policy.verify:
            return None
        streams = [*self._placed.values(), newcomer.placed]
        return keeps_slo(
            component(streams, newcomer.request.stream_id),
            self._run_costs,
            pool,
            shared_stretch=1.0 + self.policy.shared_overhead,
            periods=self.policy.verify_periods,
            eager_batching=self.policy.eager_batching,
        )

    def demands_of(self, request: StreamRequest, partition: Partition) -> tuple[RankDemand, ...]:
        """What each rank of this stream needs."""
        tables = self.placement.tables
        return tables.demands(request.model, partition, request.slo.period_s)
