"""Refusals: which resource is short, on which device, and the nearest SLO or pool that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from physis_core.plan.placement import Placement, Shortage
from physis_core.plan.requests import StreamRequest
from physis_core.plan.topology import Pool
from physis_core.types import Refused

if TYPE_CHECKING:
    from physis_core.plan.admission import Admission
    from physis_core.sim.coarse import Verdict

LONGER = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Periods that are tried as advice, in multiples of what was asked."""


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
        nearest=f"response {soonest_s * 1e3:.4g} ms",
    )


def no_grouping(admission: Admission, request: StreamRequest) -> Refused:
    """Even alone in the pool the stream would not keep its SLO."""
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
        return too_slow(soonest_s, bound_s)
    best = min(table, key=lambda plan: plan.interval_s)
    period_s = best.interval_s / (1.0 - policy.margin)
    return Refused(
        reason=f"no grouping over up to {most} devices keeps {request.slo.explain()}",
        short_resource="time",
        device="the slowest rank",
        nearest=f"period {period_s * 1e3:.4g} ms on {best.devices} devices",
    )


def nearest(admission: Admission, request: StreamRequest) -> str:
    """The smallest of a row of longer periods, and of larger pools, at which placement succeeds."""
    parts = []
    for factor in LONGER:
        slo = request.slo.with_period(request.slo.period_s * factor)
        if _places(admission, replace(request, slo=slo), admission.placement):
            parts.append(f"period {slo.period_s * 1e3:.4g} ms")
            break
    more = _more_devices(admission, request)
    if more is not None:
        parts.append(f"{admission.pool.devices + more} devices")
    return " or ".join(parts) if parts else "no longer period or larger pool within reach"


def _more_devices(admission: Admission, request: StreamRequest) -> int | None:
    """Fewest further devices that take the whole stream by themselves, beside what is free now."""
    groupings = admission.groupings(request.model, request.slo)
    if not groupings:
        return None
    most = min(plan.devices for plan in groupings)
    for more in range(1, most + 1):
        if _places(admission, request, admission.placement.widened(more)):
            return more
    return most


def _places(admission: Admission, request: StreamRequest, placement: Placement) -> bool:
    for plan in admission.groupings(request.model, request.slo)[:3]:
        demands = admission.demands_of(request, plan.partition)
        found = placement.find(demands, discrepancies=0, nodes=len(demands) + 1)
        if not isinstance(found, Shortage):
            return True
    return False
