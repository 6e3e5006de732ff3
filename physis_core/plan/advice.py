"""Refusals: which resource is short, on which device, and the nearest SLO or pool that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from physis_core.deployment.topology import Pool
from physis_core.pipeline.partition import Partition
from physis_core.plan.placement.requests import Admitted, StreamRequest
from physis_core.plan.placement.search import Placement, Shortage
from physis_core.plan.slo import Slo
from physis_core.types import Refused

if TYPE_CHECKING:
    from physis_core.plan.admission import Admission
    from physis_core.plan.coarse import Verdict

LONGER = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Periods that are tried as advice, in multiples of what was asked."""
_COMPARED = 3
NOTHING_NEAR = "no longer period or larger pool within reach"


def refusal(
    pool: Pool, shortage: Shortage | None, verdict: Verdict | None, advice: str = ""
) -> Refused:
    """Placement found a shortage, or else the simulation a stream that fails."""
    if shortage is None:
        assert verdict is not None
        return Refused(
            reason=f"in simulation stream {verdict.stream_id!r} failed: {verdict.reason}",
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
    """No place makes the stream's response as short as it asks for."""
    return Refused(
        reason=f"response {soonest_s * 1e3:.4g} ms at best is above {bound_s * 1e3:.4g} ms",
        short_resource="time",
        device="the whole pipeline",
    )


def no_grouping(admission: Admission, request: StreamRequest) -> Refused:
    """Even alone in the pool the stream would not keep its SLO."""

    def admits(slo: Slo) -> bool:
        return _admits(admission, replace(request, slo=slo), admission.placement)

    planner = admission.planners[request.model]
    policy = admission.policy
    most = min(policy.most_devices, admission.pool.devices)
    table = planner.period_table(most)
    if not table:
        return Refused(
            reason=planner.too_small(most), short_resource="memory", device="every device"
        )
    bound_s = request.slo.max_response_s
    soonest_s = min(plan.relaxed_response_s for plan in table)
    if soonest_s > bound_s:
        longer = _first_response(request.slo, soonest_s, admits)
        return replace(too_slow(soonest_s, bound_s), nearest=longer or NOTHING_NEAR)
    least_s = min(plan.interval_s for plan in table) / (1.0 - policy.margin)
    return Refused(
        reason=f"no grouping over up to {most} devices keeps {request.slo.explain()}",
        short_resource="time",
        device="the slowest rank",
        nearest=_first_period(request.slo, least_s, (1.0, *LONGER), admits) or NOTHING_NEAR,
    )


def nearest(admission: Admission, request: StreamRequest, *, crowded: bool) -> str:
    """The smallest of a row of longer periods, and of larger pools, at which the stream would be
    admitted: placed, and simulated with all who share a device with it.

    `crowded`: it had a place, and failed in simulation beside others.
    """

    failed = 0

    def admits(slo: Slo) -> bool:
        nonlocal failed
        # A simulation of each would take longer than a decision may: a second one, and no third.
        if failed > 1 or (failed and slo.period_s < 2.0 * request.slo.period_s):
            return False
        longer = replace(request, slo=slo)
        place = _quick_place(admission, longer, admission.placement)
        if place is None:
            return False
        kept = admission.keeps(place, admission.pool)
        failed += not kept
        return kept

    parts = (
        _first_period(request.slo, request.slo.period_s, LONGER, admits),
        _more_devices(admission, request, crowded),
    )
    return " or ".join(part for part in parts if part) or NOTHING_NEAR


def nearest_at(
    admission: Admission, request: StreamRequest, partition: Partition, devices: Sequence[int]
) -> str:
    """The smallest of a row of longer periods, or of longer responses where that is what fails, at
    which `request_at` would admit the stream on these devices; empty where there is none.
    """

    def admits(slo: Slo) -> bool:
        outcome = admission.would_take_at(replace(request, slo=slo), partition, devices)
        return not isinstance(outcome, Refused)

    plan = admission.planners[request.model].evaluate(partition, "given")
    if plan.relaxed_response_s > request.slo.max_response_s:
        return _first_response(request.slo, plan.relaxed_response_s, admits)
    least_s = plan.interval_s / (1.0 - admission.policy.margin)
    if least_s > request.slo.period_s:
        return _first_period(request.slo, least_s, (1.0, *LONGER), admits)
    return _first_period(request.slo, request.slo.period_s, LONGER, admits)


def _first_period(
    slo: Slo, period_s: float, factors: Sequence[float], admits: Callable[[Slo], bool]
) -> str:
    for factor in factors:
        longer = slo.with_period(_rounded_up(period_s * factor))
        if admits(longer):
            return f"period {longer.period_s * 1e3:.6g} ms"
    return ""


def _first_response(slo: Slo, soonest_s: float, admits: Callable[[Slo], bool]) -> str:
    """What is the soonest alone may take longer between others, or at this period."""
    for factor in (1.0, *LONGER):
        longer = replace(slo, max_response_s=_rounded_up(soonest_s * factor))
        if admits(longer):
            return f"response {longer.max_response_s * 1e3:.6g} ms"
    return ""


def _rounded_up(seconds: float) -> float:
    """To four digits, so that what is printed is what was tried."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 3)
    return math.ceil(seconds / unit * (1.0 - 1e-12)) * unit


def _more_devices(admission: Admission, request: StreamRequest, crowded: bool) -> str:
    """Fewest further devices, beside what is free now; at most what takes the stream alone."""
    groupings = admission.groupings(request.model, request.slo, admission.pool)
    if not groupings:
        return ""
    most = groupings[0].devices
    for more in range(1, most) if not crowded else ():
        wider = admission.placement.widened(more)
        place = _quick_place(admission, request, wider)
        if place is not None:
            if admission.keeps(place, wider.pool):
                return f"{wider.pool.devices} devices"
            break
    # Between others it has a place and fails in simulation. Devices of its own, then.
    wider = admission.placement.widened(most)
    alone = admission.alone(request, wider)
    if alone is None or not admission.keeps(alone, wider.pool):
        return ""
    return f"{wider.pool.devices} devices"


def _admits(admission: Admission, request: StreamRequest, placement: Placement) -> bool:
    place = _quick_place(admission, request, placement)
    return place is not None and admission.keeps(place, placement.pool)


def _quick_place(
    admission: Admission, request: StreamRequest, placement: Placement
) -> Admitted | None:
    """The first place of those that the door compares: whatever keeps its SLO there is let in."""
    for plan in admission.groupings(request.model, request.slo, placement.pool)[:_COMPARED]:
        demands = admission.demands_of(request, plan.partition)
        devices = placement.find(demands, discrepancies=0, nodes=len(demands) + 1)
        if not isinstance(devices, Shortage):
            return Admitted(request=request, plan=plan, devices=devices)
    return None
