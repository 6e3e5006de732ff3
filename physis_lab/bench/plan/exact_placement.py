"""The exact optimum of a small placement problem, by constraint programming.

The problem is the one that `plan.admission` solves by search: groupings, memory with each block's
weights counted once per device, and time as the cost of the batches. All periods are equal, so the
time of k tasks of a block is one number.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from physis_core.plan.admission import Admission
from physis_core.plan.placement.cost import BatchCost
from physis_core.plan.requests import StreamRequest
from physis_core.types import UserError

_UNIT_S = 1e-6
_UNIT_BYTES = 2.0**20


def optimum(
    admission: Admission, requests: Sequence[StreamRequest], *, limit_s: float
) -> tuple[int, bool]:
    """(largest number of streams that fit, whether that is proven).

    `admission` must be empty and is not changed.
    """
    try:
        cp_model: Any = importlib.import_module("ortools.sat.python.cp_model")
    except ModuleNotFoundError:
        raise UserError(
            "ortools", None, "the exact optimum needs it: pip install ortools"
        ) from None
    model = cp_model.CpModel()
    pool, policy = admission.pool, admission.policy
    devices = range(pool.devices)
    tasks_on: dict[tuple[int, str, int], list[tuple[int, Any]]] = {}
    bytes_on: dict[int, list[tuple[int, Any]]] = {g: [] for g in devices}
    chosen = []
    for i, request in enumerate(requests):
        profile = admission.models[request.model]
        options = []
        for p, plan in enumerate(admission.groupings(request.model, request.slo, pool)):
            option = model.NewBoolVar(f"y{i}_{p}")
            options.append(option)
            for rank in range(plan.partition.ranks):
                places = [model.NewBoolVar(f"x{i}_{p}_{rank}_{g}") for g in devices]
                model.Add(sum(places) == option)
                stages = plan.partition.stages_of(rank)
                count: dict[int, int] = {}
                for stage in stages:
                    block = stage % profile.blocks
                    count[block] = count.get(block, 0) + 1
                own = len(stages) * profile.kv_bytes + profile.activation_bytes
                for g in devices:
                    bytes_on[g].append((_up(own / _UNIT_BYTES), places[g]))
                    for block, tasks in count.items():
                        tasks_on.setdefault((g, request.model, block), []).append(
                            (tasks, places[g])
                        )
        admitted = model.NewBoolVar(f"a{i}")
        model.Add(sum(options) == admitted)
        chosen.append(admitted)
    period_s = requests[0].slo.period_s
    if any(r.slo.period_s != period_s for r in requests):
        raise ValueError("requests: all must have one period")
    tables = {
        name: BatchCost(profile.table(), policy.max_batch)
        for name, profile in admission.models.items()
    }
    for g in devices:
        time, memory = [], [weight * place for weight, place in bytes_on[g]]
        for (device, name, block), parts in tasks_on.items():
            if device != g:
                continue
            most = sum(tasks for tasks, _ in parts)
            row = [round(tables[name].cheapest_s(block, k) / _UNIT_S) for k in range(most + 1)]
            total = model.NewIntVar(0, most, f"n{g}_{name}_{block}")
            model.Add(total == sum(tasks * place for tasks, place in parts))
            cost = model.NewIntVar(0, max(row), f"t{g}_{name}_{block}")
            model.AddElement(total, row, cost)
            time.append(cost)
            there = model.NewBoolVar(f"w{g}_{name}_{block}")
            for _, place in parts:
                model.AddImplication(place, there)
            weights = admission.models[name].block_costs[block].weight_bytes
            memory.append(_up(weights / _UNIT_BYTES) * there)
        model.Add(sum(time) <= int(period_s * (1.0 - policy.margin) / _UNIT_S))
        model.Add(sum(memory) <= int(pool.memory_bytes / _UNIT_BYTES))
    _order_alike(model, requests, chosen)
    model.Maximize(sum(chosen))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = 2
    status = solver.Solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return 0, False
    return round(solver.ObjectiveValue()), status == cp_model.OPTIMAL


def _up(value: float) -> int:
    return int(-(-value // 1))


def _order_alike(model: Any, requests: Sequence[StreamRequest], chosen: Sequence[Any]) -> None:
    """Break symmetry: of interchangeable streams the earlier ones are admitted first."""
    last: dict[str, int] = {}
    for i, request in enumerate(requests):
        if request.model in last:
            model.Add(chosen[last[request.model]] >= chosen[i])
        last[request.model] = i
