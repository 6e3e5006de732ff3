"""One whole simulation from its configuration: admit, run, and put the figures together."""

from __future__ import annotations

import time
from typing import Any

from physis_core.plan.admission import Admission
from physis_core.plan.arrivals import Arrival, Door, device_memory
from physis_core.plan.config import PlanConfig
from physis_core.plan.simulation_config import SimConfig
from physis_core.sim.figures import figures
from physis_core.sim.scenario import Scenario
from physis_core.sim.simulator import Simulator


def simulate(plan: PlanConfig, config: SimConfig, *, record_tasks: int = 1 << 20) -> dict[str, Any]:
    """Streams of the plan enter at the start, each a little after the other; arrivals come
    later.
    """
    admission = Admission(plan.pool, plan.models, plan.policy)
    costs = {
        admission.placement.tables.first_key[name] + block: dict(cost.p50_s)
        for name, profile in plan.models.items()
        for block, cost in enumerate(profile.block_costs)
    }
    simulator = Simulator(
        Scenario(
            pool=plan.pool,
            costs=costs,
            streams=(),
            end_s=config.seconds,
            max_batch=plan.policy.max_batch,
            eager_batching=plan.policy.eager_batching,
            boundary_credits=config.boundary_credits,
            noise=config.noise,
            stalls=config.stalls,
            per_batch_s=config.per_batch_s,
            seed=config.seed,
            warmup_s=config.warmup_s,
            overload_s=config.overload_s,
            record_tasks=record_tasks,
        )
    )
    door = Door(
        admission,
        simulator,
        sensor_period_s=config.sensor_period_s,
        sensor_delay_s=config.sensor_delay_s,
    )
    door.expect(_at_start(plan))
    door.expect(config.arrivals)
    # The clock of the machine only says how fast the simulation ran; nothing in it depends on it.
    start_s = time.process_time()
    simulator.run()
    cpu_s = time.process_time() - start_s
    door.look(config.seconds)
    return {
        **figures(simulator, device_memory(admission)),
        "admitted": door.admitted,
        "most_open": door.most_open,
        "refused": door.refused,
        "refusal_rate": len(door.refused) / max(1, door.admitted + len(door.refused)),
        "fragmentation": door.fragmentation,
        "cpu_s": cpu_s,
        "tasks_per_s": simulator.tasks / cpu_s if cpu_s > 0.0 else 0.0,
    }


def _at_start(plan: PlanConfig) -> list[Arrival]:
    requests = [
        request
        for group in sorted(plan.streams, key=lambda g: -g.priority)
        for request in group.requests()
    ]
    golden = 0.6180339887498949
    longest_s = max((request.slo.period_s for request in requests), default=0.0)
    # Phases spread over the period, as streams that started at different times have them; in the
    # order in which the plan admits them, so that both let the same ones in.
    shares = sorted(i * golden % 1.0 for i in range(len(requests)))
    return [
        Arrival(request=request, at_s=share * 0.5 * longest_s)
        for share, request in zip(shares, requests, strict=True)
    ]
