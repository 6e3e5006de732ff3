"""Refusals: which resource is short, on which device, and the nearest SLO or pool that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from physis_core.plan.placement import Placement, Shortage
from physis_core.plan.requests import NoPlace, StreamRequest
from physis_core.plan.topology import Pool
from physis_core.types import Refused

if TYPE_CHECKING:
    from physis_core.plan.admission import Admission
    from physis_core.sim.coarse import Verdict

LONGER = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Periods that are tried as advice, in multiples of what was asked."""
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
        return replace(
            too_slow(soonest_s, bound_s), nearest=_longer_response(admission, request, soonest_s)
        )
    best = min(table, key=lambda plan: plan.interval_s)
    return Refused(
        reason=f"no grouping over up to {most} devices keeps {request.slo.explain()}",
        short_resource="time",
        device="the slowest rank",
        nearest=_longer_period(
            admission, request, best.interval_s / (1.0 - policy.margin), (1.0, *LONGER)
        )
        or NOTHING_NEAR,
    )


def nearest(admission: Admission, request: StreamRequest) -> str:
    """The smallest of a row of longer periods, and of larger pools, at which the stream would be
    admitted: by the very decision that refused it, simulation included.
    """
    parts = (
        _longer_period(admission, request, request.slo.period_s, LONGER),
        _more_devices(admission, request),
    )
    return " or ".join(part for part in parts if part) or NOTHING_NEAR


def _longer_period(
    admission: Admission, request: StreamRequest, period_s: float, factors: Sequence[float]
) -> str:
    for factor in factors:
        slo = request.slo.with_period(_rounded_up(period_s * factor))
        if _admits(admission, replace(request, slo=slo), admission.placement):
            return f"period {slo.period_s * 1e3:.4g} ms"
    return ""


def _rounded_up(seconds: float) -> float:
    """To four digits, so that what is printed is what was tried."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 3)
    return math.ceil(seconds / unit * (1.0 - 1e-12)) * unit


def _longer_response(admission: Admission, request: StreamRequest, soonest_s: float) -> str:
    """What is the soonest alone may take longer between others, or at this period."""
    for factor in (1.0, *LONGER):
        slo = replace(request.slo, max_response_s=_rounded_up(soonest_s * factor))
        if _admits(admission, replace(request, slo=slo), admission.placement):
            return f"response {slo.max_response_s * 1e3:.4g} ms"
    return NOTHING_NEAR


def _more_devices(admission: Admission, request: StreamRequest) -> str:
    """Fewest further devices, beside what is free now; at most what takes the stream alone."""
    groupings = admission.groupings(request.model, request.slo, admission.pool)
    for more in range(1, min((plan.devices for plan in groupings), default=0) + 1):
        wider = admission.placement.widened(more)
        if _admits(admission, request, wider):
            return f"{wider.pool.devices} devices"
    return ""


def _admits(admission: Admission, request: StreamRequest, placement: Placement) -> bool:
    """Whether the door would let it in. A quick placement first: most candidates fail there."""
    for plan in admission.groupings(request.model, request.slo, placement.pool)[:3]:
        demands = admission.demands_of(request, plan.partition)
        found = placement.find(demands, discrepancies=0, nodes=len(demands) + 1)
        if not isinstance(found, Shortage):
            return not isinstance(admission.decide(request, placement), NoPlace)
    return False
