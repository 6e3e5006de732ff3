"""One whole simulation of a plan: streams arrive, are admitted or refused, run and leave."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from physis_core.plan.admission import Admission
from physis_core.plan.arrivals import Arrival, Arrivals, device_memory, poisson_arrivals
from physis_core.plan.config import PlanConfig, SimulationFields
from physis_core.plan.slo_check import phase
from physis_core.sim.figures import figures
from physis_core.sim.scenario import Scenario, Stall
from physis_core.sim.simulator import Simulator
from physis_core.types import UserError

MOST_ARRIVALS = 1e6
"""Limit of a simulation's expected arrivals: more is most likely a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A plan's simulation, checked against the plan. `arrivals` are those after the start."""

    plan: PlanConfig
    fields: SimulationFields
    arrivals: tuple[Arrival, ...]


def simulation_of(
    plan: PlanConfig, *, seconds: float | None = None, seed: int | None = None
) -> Simulation:
    """The plan's `simulate` part; `seconds` and `seed` replace those of the file.

    Raises:
        UserError: a value that does not fit the plan.
    """
    fields = plan.simulate or SimulationFields()
    changed = {"seconds": seconds, "seed": seed}
    fields = msgspec.structs.replace(
        fields, **{name: value for name, value in changed.items() if value is not None}
    )
    if fields.warmup_s >= fields.seconds:
        limit = f"must be below {fields.seconds:g} seconds"
        raise UserError("simulate.warmup_s", fields.warmup_s, limit)
    for i, stall in enumerate(fields.stalls):
        if stall.device >= plan.pool.devices:
            devices = f"there are {plan.pool.devices} devices"
            raise UserError(f"simulate.stalls[{i}].device", stall.device, devices)
    arrivals = _arrivals(plan, fields)
    if not plan.streams and not arrivals:
        raise UserError("streams", [], "needs at least one, here or in simulate.arrivals")
    return Simulation(plan=plan, fields=fields, arrivals=arrivals)


def simulate(simulation: Simulation) -> dict[str, Any]:
    """Run it. The plan's streams enter at the start, one after the other; arrivals later."""
    plan, fields = simulation.plan, simulation.fields
    admission = Admission(plan.pool, plan.models, plan.policy)
    simulator = Simulator(
        scenario_of(
            admission,
            fields,
            max_batch=plan.policy.max_batch,
            eager_batching=plan.policy.eager_batching,
            boundary_credits=fields.boundary_credits,
        )
    )
    arrivals = Arrivals(
        admission,
        simulator,
        sensor_period_s=0.0 if fields.sensor_hz is None else 1.0 / fields.sensor_hz,
        sensor_delay_s=fields.sensor_delay_ms / 1e3,
    )
    arrivals.expect(_at_start(plan))
    arrivals.expect(simulation.arrivals)
    # Process time is only reported; nothing in the simulation depends on it.
    start_s = time.process_time()
    simulator.run()
    cpu_s = time.process_time() - start_s
    arrivals.note_fragmentation(fields.seconds)
    return {
        **figures(simulator, device_memory(admission)),
        "admitted": arrivals.admitted,
        "most_open": arrivals.most_open,
        "refused": arrivals.refused,
        "refusal_rate": len(arrivals.refused) / max(1, arrivals.admitted + len(arrivals.refused)),
        "fragmentation": arrivals.fragmentation,
        "cpu_s": cpu_s,
        "tasks_per_s": simulator.tasks / cpu_s if cpu_s > 0.0 else 0.0,
    }


def scenario_of(
    admission: Admission,
    fields: SimulationFields,
    *,
    max_batch: int,
    boundary_credits: int,
    eager_batching: bool = False,
) -> Scenario:
    """The admission's pool and models, at p50 costs, with no stream yet."""
    first_key = admission.placement.tables.first_key
    costs = {
        first_key[name] + block: dict(cost.p50_s)
        for name, profile in admission.models.items()
        for block, cost in enumerate(profile.block_costs)
    }
    return Scenario(
        pool=admission.pool,
        costs=costs,
        streams=(),
        end_s=fields.seconds,
        max_batch=max_batch,
        eager_batching=eager_batching,
        boundary_credits=boundary_credits,
        noise=fields.noise,
        stalls=tuple(Stall(**msgspec.structs.asdict(stall)) for stall in fields.stalls),
        per_batch_s=fields.per_batch_us / 1e6,
        seed=fields.seed,
        warmup_s=fields.warmup_s,
        overload_s=fields.overload_check_s,
    )


def _at_start(plan: PlanConfig) -> list[Arrival]:
    requests = [
        request
        for group in sorted(plan.streams, key=lambda g: -g.priority)
        for request in group.requests()
    ]
    longest_s = max((request.slo.period_s for request in requests), default=0.0)
    # Phases spread over the period, as those of streams that started at different times; sorted,
    # so that the simulation admits in the same order as the plan.
    shares = sorted(map(phase, range(len(requests))))
    return [
        Arrival(request=request, at_s=share * 0.5 * longest_s)
        for share, request in zip(shares, requests, strict=True)
    ]


def _arrivals(plan: PlanConfig, fields: SimulationFields) -> tuple[Arrival, ...]:
    groups = {group.name: group for group in plan.streams}
    arrivals: list[Arrival] = []

    def known(field: str, name: str) -> None:
        if name not in groups:
            field = f"simulate.arrivals.{field}"
            raise UserError(field, name, f"must be one of {', '.join(groups)}")

    poisson = fields.arrivals.poisson
    if poisson is not None:
        for i, name in enumerate(poisson.streams):
            known(f"poisson.streams[{i}]", name)
        if poisson.rate_per_s > MOST_ARRIVALS / fields.seconds:
            raise UserError(
                "simulate.arrivals.poisson.rate_per_s",
                poisson.rate_per_s,
                f"must be at most {MOST_ARRIVALS / fields.seconds:g}",
            )
        arrivals += poisson_arrivals(
            [groups[name].request(name) for name in poisson.streams],
            rate_hz=poisson.rate_per_s,
            mean_stay_s=poisson.mean_stay_s,
            end_s=fields.seconds,
            seed=fields.seed,
        )
    for i, entry in enumerate(fields.arrivals.trace):
        known(f"trace[{i}].stream", entry.stream)
        request = groups[entry.stream].request(f"{entry.stream}@trace{i}")
        stay_s = math.inf if entry.stay_s is None else entry.stay_s
        arrivals.append(Arrival(request=request, at_s=entry.at_s, stay_s=stay_s))
    return tuple(arrivals)
