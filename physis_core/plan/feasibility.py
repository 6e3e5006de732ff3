"""Whether a stream fits: a grouping that keeps its SLO, devices with room, and a simulation with
all streams that share them. Nothing here changes the pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from physis_core.deployment.profile import ModelProfile
from physis_core.deployment.slo import Slo
from physis_core.deployment.topology import Pool
from physis_core.pipeline.partition import Partition
from physis_core.plan.placement.cost import RankCost
from physis_core.plan.placement.demands import RankDemand
from physis_core.plan.placement.grouping import Plan, Planner
from physis_core.plan.placement.search import Placement, Shortage
from physis_core.plan.requests import AdmissionPolicy, Admitted, NoPlace, Place, StreamRequest
from physis_core.plan.slo_check import PlacedStream, RunCosts, SloCheck, component, keeps_slo
from physis_core.types import Refused

COMPARED = 3
"""Groupings that fit, before the best of them is taken."""
_SIMULATED = 2
"""Places that are simulated, best first."""


@dataclass(slots=True)
class Feasibility:
    """The streams of a pool, and whether one more fits.

    `preferred`: by model, the number of the grouping that is tried first, and taken where it fits.
    `planners`: by model, made here where not given; their tables can be shared.
    """

    pool: Pool
    models: Mapping[str, ModelProfile]
    policy: AdmissionPolicy = field(default_factory=AdmissionPolicy)
    preferred: Mapping[str, int] = field(default_factory=dict)
    planners: Mapping[str, Planner] = field(default_factory=dict)
    admitted: dict[str, Admitted] = field(default_factory=dict)
    placement: Placement = field(init=False)
    _placed: dict[str, PlacedStream] = field(init=False, default_factory=dict)
    _groupings: dict[tuple[str, float, float, int], list[Plan]] = field(
        init=False, default_factory=dict
    )
    _run_costs: RunCosts = field(init=False)

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
        )
        self._run_costs = RunCosts(self.models, policy.max_batch)
        if not self.planners:
            self.planners = {
                name: Planner(profile, self.pool, max_batch=policy.max_batch)
                for name, profile in self.models.items()
            }
        # Tables are computed here, so that no decision waits for one.
        for name, planner in self.planners.items():
            for devices in range(1, self._most_devices(name, self.pool) + 1):
                planner.candidates(devices)

    def decide(self, request: StreamRequest, placement: Placement) -> Place | NoPlace:
        """Where `request` would run in this state of the pool, or why nowhere."""
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
                nodes=max(self.policy.nodes, len(demands) + 8),
            )
            if isinstance(devices, Shortage):
                if shortage is None or devices.missing_share < shortage.missing_share:
                    shortage = devices
                continue
            admitted = Admitted(request=request, plan=plan, devices=devices)
            growth = placement.growth(demands, devices)
            found.append((round(growth, 6), number, Place(admitted=admitted, demands=demands)))
            if preferred is not None or len(found) == COMPARED:
                break
        check: SloCheck | None = None
        # The one that leaves most for others; of equal ones, the one with the fewest devices.
        ranked = sorted(found, key=lambda entry: entry[:2])[:_SIMULATED]
        if found and found[0] not in ranked:
            # Advice tries this one: what it offers must be admitted.
            ranked[-1] = found[0]
        simulated: set[PlacedStream] = set()
        for _, _, place in ranked:
            placed = place.admitted.placed
            if placed in simulated:
                # Another grouping, but all its ranks share devices: the same schedule.
                continue
            simulated.add(placed)
            check = self._verify(place.admitted, placement.pool)
            if check is None or check.kept:
                return place
        alone = self.alone(request, placement) if found and self.policy.alone else None
        if alone is not None and self.keeps(alone, placement.pool):
            demands = self.demands_of(request, alone.plan.partition)
            return Place(admitted=alone, demands=demands)
        return NoPlace(shortage=shortage, check=check)

    def check_at(
        self, request: StreamRequest, partition: Partition, devices: Sequence[int]
    ) -> Admitted | Refused:
        """Whether the stream fits with this partition on exactly these devices."""
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
        check = self._verify(admitted, self.pool) if shortage is None else None
        if shortage is None and (check is None or check.kept):
            return admitted
        return refusal(self.pool, shortage, check)

    def _slowest(self, model: str, plan: Plan) -> int:
        """Rank that sets the interval."""
        cost = RankCost(self.models[model], self.policy.max_batch)
        stages = plan.partition.stages_by_rank()
        return max(range(len(stages)), key=lambda r: cost.rank_s(stages[r], p99=True))

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
                    known.append(min(fitting, key=lambda plan: self._devices_needed(plan, slo)))
                if fitting and not least:
                    least = devices
                # Every count where the stream just fits, then ever larger steps: many small ranks
                # fill what few large ones leave.
                near = not least or devices < least + 2
                last = len(known) == self.policy.groupings - 1 and devices < most
                step = devices + 1 if near else math.ceil(devices * 1.5)
                devices = most if last or devices < most < step else step
            self._groupings[key] = known
        return known

    def _most_devices(self, model: str, pool: Pool) -> int:
        """Ranks of the finest grouping that is tried; a device may hold several."""
        most = min(self.policy.most_devices, pool.devices)
        return max(most, self.models[model].blocks)

    def _devices_needed(self, plan: Plan, slo: Slo) -> float:
        """Memory and time that a stream takes when it is alone, in devices."""
        return plan.total_bytes / self.pool.memory_bytes + plan.work_s / slo.period_s

    def alone(self, request: StreamRequest, placement: Placement) -> Admitted | None:
        """The smallest grouping on unused devices, if there are enough.

        Best-Fit prefers full devices; where too many streams share one, this is the alternative.
        """
        groupings = self.groupings(request.model, request.slo, placement.pool)
        empty = placement.empty()
        if not groupings or groupings[0].devices > len(empty):
            return None
        devices = empty[: groupings[0].devices]
        return Admitted(request=request, plan=groupings[0], devices=devices)

    def keeps(self, new: Admitted, pool: Pool) -> bool:
        """Whether the stream keeps its SLO on these devices, and so does every other stream."""
        check = self._verify(new, pool)
        return check is None or check.kept

    def _verify(self, new: Admitted, pool: Pool) -> SloCheck | None:
        """Simulate the new stream with all that share a device with it, directly or not."""
        if not self.policy.verify:
            return None
        streams = [*self._placed.values(), new.placed]
        return keeps_slo(
            component(streams, new.request.stream_id),
            self._run_costs,
            pool,
            shared_stretch=1.0 + self.policy.shared_overhead,
            periods=1,
            eager_batching=self.policy.eager_batching,
        )

    def demands_of(self, request: StreamRequest, partition: Partition) -> tuple[RankDemand, ...]:
        """What each rank of this stream needs."""
        tables = self.placement.tables
        return tables.demands(request.model, partition, request.slo.period_s)


def refusal(
    pool: Pool, shortage: Shortage | None, check: SloCheck | None, advice: str = ""
) -> Refused:
    """The refusal: the shortage that placement found, or the stream that failed in simulation."""
    if shortage is None:
        assert check is not None
        return Refused(
            reason=f"in simulation stream {check.stream_id!r} failed: {check.reason}",
            short_resource="time",
            device="shared devices",
            nearest=advice,
        )
    if shortage.resource == "memory":
        reason = f"memory is short by {shortage.missing / 2**30:.2f} GiB"
    else:
        reason = f"time is short by {100 * shortage.missing:.1f}% of the device"
    device = pool.name_of(shortage.device)
    return Refused(
        reason=f"{reason} on {device}"
        + (f" for rank {shortage.rank}" if shortage.rank >= 0 else ""),
        short_resource=shortage.resource,
        device=device,
        nearest=advice,
    )


def too_slow(soonest_s: float, bound_s: float) -> Refused:
    """The refusal of a stream whose shortest possible response is above its bound."""
    return Refused(
        reason=f"response {soonest_s * 1e3:.4g} ms at best is above {bound_s * 1e3:.4g} ms",
        short_resource="time",
        device="the whole pipeline",
    )
