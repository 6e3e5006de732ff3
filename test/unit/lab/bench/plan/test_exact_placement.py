"""Search against the exact optimum on small random instances, and admission against simulation."""

from __future__ import annotations

import pytest

from physis_core.deployment.slo import Slo
from physis_core.model.backbones import BACKBONES
from physis_core.plan.admission import Admission
from physis_core.plan.analytic import analytic_profile
from physis_core.plan.arrivals import stream_of
from physis_core.plan.packing import pack
from physis_core.plan.requests import AdmissionPolicy, StreamRequest
from physis_core.sim.noise import NoiseSpec
from physis_core.sim.scenario import Scenario
from physis_core.sim.simulator import Simulator
from physis_lab.bench.plan.placement import (
    DEVICE,
    pool_of,
    random_instance,
)


def test_packing_admits_nearly_what_the_optimum_does() -> None:
    pytest.importorskip("ortools", reason="the exact optimum needs ortools (requirements/dev.in)")
    from physis_lab.bench.plan.exact_placement import optimum

    ours = best = 0
    for seed in (0, 1, 3, 5, 6, 7):
        empty, requests = random_instance(seed)
        most, proven = optimum(empty, requests, limit_s=5.0)
        packed = pack(empty.pool, empty.models, empty.policy, requests)
        if proven:
            assert len(packed.admitted) <= most
            ours += len(packed.admitted)
            best += most
    assert best > 0
    assert ours >= 0.9 * best


def test_what_admission_lets_in_keeps_its_slo_in_the_full_simulation() -> None:
    models = {
        name: analytic_profile(BACKBONES[name], DEVICE) for name in ("wan2.2-5b", "wan2.1-1.3b")
    }
    admission = Admission(pool_of(3), models, AdmissionPolicy(advise=False))
    for i in range(16):
        name = ("wan2.2-5b", "wan2.1-1.3b")[i % 2]
        slo = Slo.of_period("latents", 1.0, (0.9, 0.6, 1.3)[i % 3])
        admission.request(StreamRequest(stream_id=f"s{i}", model=name, slo=slo))
    assert len(admission.admitted) >= 4
    simulator = Simulator(
        Scenario(
            pool=admission.pool,
            costs={
                admission.placement.tables.first_key[name] + block: dict(cost.p50_s)
                for name, profile in models.items()
                for block, cost in enumerate(profile.block_costs)
            },
            streams=tuple(
                stream_of(one, admission, open_s=0.1 * i)
                for i, one in enumerate(admission.admitted.values())
            ),
            end_s=40.0,
            noise=NoiseSpec(p99_ratio=1.05),
            record_tasks=0,
        )
    )
    simulator.run()
    for trace in simulator.traces:
        assert not trace.dropped
        steady = [c for c in trace.chunks if c.release_s > 15.0 and c.deadline_s < 40.0]
        assert steady
        assert all(c.exit_s <= c.deadline_s for c in steady)
