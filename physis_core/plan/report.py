"""The outcome of planning as plain data: what `physis plan` prints and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from physis_core.deployment.slo import Slo, rate_text
from physis_core.plan.admission import Admission
from physis_core.plan.config import PlanConfig, StreamGroup
from physis_core.plan.placement.grouping import Plan, Planner, pareto
from physis_core.plan.requests import Admitted
from physis_core.types import Refused


def plan_row(plan: Plan, planner: Planner, slo: Slo | None) -> dict[str, Any]:
    """One line of a period table. Without an SLO, a plan is costed at its own interval."""
    pace_s = slo.period_s if slo is not None and plan.interval_s <= slo.period_s else None
    period_s = pace_s if pace_s is not None else plan.interval_s
    per_chunk = slo.per_chunk if slo is not None else 1.0
    return {
        "devices": plan.devices,
        "shape": plan.shape,
        "output_interval_ms": plan.interval_p50_s * 1e3,
        "output_interval_p99_ms": plan.interval_s * 1e3,
        "response_latency_ms": planner.response_at(plan, period_s) * 1e3,
        "memory_gib": plan.memory_bytes / 2**30,
        "device_seconds_per_output": plan.device_seconds_per_output(period_s, per_chunk),
        "keeps_slo": None if slo is None else plan.interval_s <= slo.period_s,
    }


def best_plan(planner: Planner, slo: Slo | None, goal: str, most: int) -> Plan | None:
    """The grouping of one stream that meets the goal; None where none keeps the SLO."""
    if slo is None or goal == "shortest_interval":
        return planner.shortest_interval(most)
    if goal == "shortest_response":
        return planner.shortest_response(slo.period_s, most)
    return planner.fewest_devices(slo.period_s, slo.max_response_s, most)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    """Which streams of a group have a place, and why the next one has none."""

    group: StreamGroup
    admitted: tuple[Admitted, ...]
    refused: Refused | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """All groups, in order of priority."""

    admission: Admission
    groups: tuple[GroupDecision, ...]


def decide(config: PlanConfig) -> Decision:
    """Admit the plan's streams to its empty pool."""
    admission = Admission(config.pool, config.models, config.policy)
    groups = []
    for group in sorted(config.streams, key=lambda g: -g.priority):
        admitted: list[Admitted] = []
        refused: Refused | None = None
        for request in group.requests():
            outcome = admission.request(request)
            if isinstance(outcome, Refused):
                # The remaining equal streams would be refused for the same reason.
                refused = outcome
                break
            admitted.append(outcome)
        groups.append(GroupDecision(group=group, admitted=tuple(admitted), refused=refused))
    return Decision(admission=admission, groups=tuple(groups))


def plan_report(config: PlanConfig, decision: Decision, *, front: bool) -> dict[str, Any]:
    """Tables per model, then the admission of all streams in order of priority."""
    models: dict[str, Any] = {}
    for name, profile in config.models.items():
        slos = [s.slo for s in config.streams if s.model == name]
        slo = min(slos, key=lambda s: s.period_s) if slos else None
        planner = Planner(profile, config.pool, max_batch=config.policy.max_batch)
        most = min(config.pool.devices, profile.graph.stages)
        table = planner.period_table(most)
        if front:
            table = pareto([p for n in range(1, most + 1) for p in planner.candidates(n)])
        best = best_plan(planner, slo, config.goal, most) if table else None
        models[name] = {
            "profile": profile.name,
            "source": profile.source,
            "assumptions": list(profile.assumptions),
            "slo": None if slo is None else slo.explain(),
            "goal": config.goal,
            "pareto": front,
            "table": [plan_row(plan, planner, slo) for plan in table],
            "too_small": "" if table else planner.too_small(most),
            "best": None if best is None else plan_row(best, planner, slo),
            "best_rate": None
            if best is None or slo is None
            else rate_text(1.0 / best.interval_s, slo.count, slo.per_chunk),
        }
    return {"models": models, "admission": admission_report(decision)}


def admission_report(decision: Decision) -> dict[str, Any]:
    rows = [
        {
            "stream": one.group.name,
            "model": one.group.model,
            "slo": one.group.slo.explain(),
            "priority": one.group.priority,
            "asked": one.group.copies,
            "admitted": len(one.admitted),
            "placement": {a.request.stream_id: _place(a) for a in one.admitted},
            "refused": None if one.refused is None else asdict(one.refused),
        }
        for one in decision.groups
    ]
    return {"streams": rows, **_pool_report(decision.admission, rows)}


def _place(admitted: Admitted) -> dict[str, Any]:
    return {"shape": admitted.plan.shape, "devices": list(admitted.devices)}


def _pool_report(admission: Admission, rows: Sequence[Any]) -> dict[str, Any]:
    memory = admission.placement.memory_used() / admission.pool.memory_bytes
    load = admission.placement.load()
    # On-time outputs per second by meaning; rates of different meanings are never added.
    rates: dict[str, float] = {}
    for one in admission.admitted.values():
        slo = one.request.slo
        rates[slo.count] = rates.get(slo.count, 0.0) + slo.rate_hz
    devices = admission.pool.devices
    lost_memory, lost_time = admission.fragmentation()
    return {
        "devices": devices,
        "memory_share": {"mean": float(memory.mean()), "max": float(memory.max())},
        "time_share": {"mean": float(load.mean()), "max": float(load.max())},
        "breaks_first": "memory" if memory.max() >= load.max() else "time",
        "fragmentation": {"memory": lost_memory, "time": lost_time},
        "device_seconds_per_output": {
            count: devices / rate for count, rate in rates.items() if len(rates) == 1
        },
        "note": "" if rows else "no streams given: tables only",
    }
