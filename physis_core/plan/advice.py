"""What a refused stream could ask for instead: the nearest SLO or pool size that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from physis_core.deployment.slo import Slo
from physis_core.pipeline.partition import Partition
from physis_core.plan.feasibility import COMPARED, Feasibility, too_slow
from physis_core.plan.placement.search import Placement, Shortage
from physis_core.plan.requests import Admitted, StreamRequest
from physis_core.types import Refused

LONGER = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Periods that are tried as advice, in multiples of the requested one."""
NOTHING_NEAR = "no longer period or larger pool within reach"


def no_grouping(state: Feasibility, request: StreamRequest) -> Refused:
    """The stream would not keep its SLO even alone in the pool."""

    def admits(slo: Slo) -> bool:
        return _admits(state, replace(request, slo=slo), state.placement)

    planner = state.planners[request.model]
    policy = state.policy
    most = min(policy.most_devices, state.pool.devices)
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


def nearest(state: Feasibility, request: StreamRequest, *, crowded: bool) -> str:
    """The first of some longer periods, and of larger pools, at which the stream would be admitted:
    placed, and simulated with all that share a device with it.

    `crowded`: it had a place, but failed in simulation beside other streams.
    """

    failed = 0

    def admits(slo: Slo) -> bool:
        nonlocal failed
        # Simulating each would take too long for one decision: two simulations at most.
        if failed > 1 or (failed and slo.period_s < 2.0 * request.slo.period_s):
            return False
        longer = replace(request, slo=slo)
        place = _quick_place(state, longer, state.placement)
        if place is None:
            return False
        kept = state.keeps(place, state.pool)
        failed += not kept
        return kept

    parts = (
        _first_period(request.slo, request.slo.period_s, LONGER, admits),
        _more_devices(state, request, crowded),
    )
    return " or ".join(part for part in parts if part) or NOTHING_NEAR


def nearest_at(
    state: Feasibility, request: StreamRequest, partition: Partition, devices: Sequence[int]
) -> str:
    """The first of some longer periods, or of longer responses where the response fails, at which
    the stream fits on these devices; empty where there is none.
    """

    def admits(slo: Slo) -> bool:
        outcome = state.check_at(replace(request, slo=slo), partition, devices)
        return not isinstance(outcome, Refused)

    plan = state.planners[request.model].evaluate(partition, "given")
    if plan.relaxed_response_s > request.slo.max_response_s:
        return _first_response(request.slo, plan.relaxed_response_s, admits)
    least_s = plan.interval_s / (1.0 - state.policy.margin)
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
    """Other streams, or this period, may lengthen even the shortest response."""
    for factor in (1.0, *LONGER):
        longer = replace(slo, max_response_s=_rounded_up(soonest_s * factor))
        if admits(longer):
            return f"response {longer.max_response_s * 1e3:.6g} ms"
    return ""


def _rounded_up(seconds: float) -> float:
    """To four digits, so that the printed value is the one that was tried."""
    unit = 10.0 ** (math.floor(math.log10(seconds)) - 3)
    return math.ceil(seconds / unit * (1.0 - 1e-12)) * unit


def _more_devices(state: Feasibility, request: StreamRequest, crowded: bool) -> str:
    """The smallest larger pool; at most as many more devices as the stream needs alone."""
    groupings = state.groupings(request.model, request.slo, state.pool)
    if not groupings:
        return ""
    most = groupings[0].devices
    for more in range(1, most) if not crowded else ():
        wider = state.placement.widened(more)
        place = _quick_place(state, request, wider)
        if place is not None:
            if state.keeps(place, wider.pool):
                return f"{wider.pool.devices} devices"
            break
    # It shares devices and fails in simulation: try devices of its own.
    wider = state.placement.widened(most)
    alone = state.alone(request, wider)
    if alone is None or not state.keeps(alone, wider.pool):
        return ""
    return f"{wider.pool.devices} devices"


def _admits(state: Feasibility, request: StreamRequest, placement: Placement) -> bool:
    place = _quick_place(state, request, placement)
    return place is not None and state.keeps(place, placement.pool)


def _quick_place(
    state: Feasibility, request: StreamRequest, placement: Placement
) -> Admitted | None:
    """The first of the places that admission compares. A stream that keeps its SLO there is
    admitted.
    """
    for plan in state.groupings(request.model, request.slo, placement.pool)[:COMPARED]:
        demands = state.demands_of(request, plan.partition)
        devices = placement.find(demands, discrepancies=0, nodes=len(demands) + 1)
        if not isinstance(devices, Shortage):
            return Admitted(request=request, plan=plan, devices=devices)
    return None
