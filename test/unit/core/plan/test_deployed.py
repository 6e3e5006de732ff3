"""A plan becomes a file, and the file runs what the plan decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from physis_core.deployment.file import load_deployment, read_deployment, write_deployment
from physis_core.plan.config import PlanConfig, read_plan
from physis_core.plan.deployed import deployment_fields, simulate_deployed
from physis_core.plan.report import Decision, decide
from physis_core.types import UserError

DEVICE = {
    "name": "d",
    "peak_tflops": 989,
    "bandwidth_gb_s": 3350,
    "memory_gib": 72,
    "achieved_compute": 0.25,
    "achieved_bandwidth": 0.7,
    "overhead_ms": 0.9,
}
SLO = {"count": "latents", "per_chunk": 1, "period_ms": 1000}
PLAN: dict[str, Any] = {
    "device": DEVICE,
    "pool": {
        "devices": 6,
        "devices_per_host": 4,
        "fast": {"latency_us": 20, "bandwidth_gb_s": 200},
        "slow": {"latency_us": 50, "bandwidth_gb_s": 40},
    },
    "models": {"big": {"backbone": "wan2.2-5b"}, "small": {"backbone": "wan2.1-1.3b"}},
    "streams": [
        {"name": "world", "model": "big", "copies": 4, "slo": SLO},
        {"name": "robot", "model": "small", "copies": 3, "priority": 1, "slo": SLO},
    ],
    "policy": {"max_batch": 8},
}


def decided(**changes: Any) -> tuple[PlanConfig, Decision]:
    config = read_plan({**PLAN, **changes}, Path())
    return config, decide(config)


def written(path: Path, **changes: Any) -> Decision:
    config, decision = decided(**changes)
    admitted = {one.group.name: one.admitted for one in decision.groups}
    write_deployment(deployment_fields(config, admitted, path.parent), path, "Written by a test.")
    return decision


def test_the_file_has_the_plan_s_devices_routes_streams_and_costs(tmp_path):
    path = tmp_path / "deployment.yaml"
    decision = written(path)
    planned = load_deployment(path)
    deployment = planned.deployment
    assert [d.host for d in deployment.devices] == ["host0"] * 4 + ["host1"] * 2
    assert all(d.emulated for d in deployment.devices)
    assert deployment.workers == 0
    assert deployment.max_batch == 8
    by_id = {stream.stream_id: stream for stream in planned.streams}
    places = {a.request.stream_id: a for one in decision.groups for a in one.admitted}
    assert set(by_id) == set(places)
    for name, admitted in places.items():
        route = deployment.routes[by_id[name].route]
        assert route.model == admitted.request.model
        assert route.partition.rank_of == admitted.plan.partition.rank_of
        assert route.device_of_rank == admitted.devices
        assert by_id[name].slo == admitted.request.slo
        assert by_id[name].priority == admitted.request.priority
    profile = decision.admission.models["small"]
    first = deployment.first_keys()["small"]
    assert deployment.costs is not None
    assert deployment.costs[first] == pytest.approx(profile.block_costs[0].p50_s)
    assert deployment.pool(1.0, planned.fast, planned.slow).link(3, 4).latency_s == 50e-6


def test_admission_lets_in_all_that_the_plan_placed(tmp_path):
    path = tmp_path / "deployment.yaml"
    written(path)
    outcome = simulate_deployed(load_deployment(path), seconds=12.0, seed=3)
    assert outcome["refused"] == []
    assert {row["stream"] for row in outcome["streams"]} == {
        *(f"world-{i}" for i in range(4)),
        *(f"robot-{i}" for i in range(3)),
    }
    assert all(row["chunks"] >= 8 for row in outcome["streams"])


def test_a_stream_that_admission_refuses_is_named_and_runs_all_the_same(tmp_path):
    config, decision = decided()
    admitted = {one.group.name: one.admitted for one in decision.groups}
    fields = deployment_fields(config, admitted, tmp_path)
    values = read_fields(fields, tmp_path)
    values["streams"][0]["routes"] *= 8
    outcome = simulate_deployed(read_deployment(values, tmp_path), seconds=6.0)
    assert outcome["refused"]
    assert outcome["refused"][0]["reason"]
    assert len(outcome["streams"]) == 32 + 3


def read_fields(fields: Any, folder: Path) -> Any:
    from physis_core.files import read_file

    path = folder / "fields.yaml"
    write_deployment(fields, path, "Written by a test.")
    return read_file(path)


def test_real_devices_need_a_model_that_runs():
    config, decision = decided(pool={"devices": 6, "kind": "cpu"})
    admitted = {one.group.name: one.admitted for one in decision.groups}
    with pytest.raises(UserError, match=r"models\.big\.model: None: is needed"):
        deployment_fields(config, admitted, Path())


def test_a_gpu_host_gives_each_worker_a_gpu_of_its_own(tmp_path):
    models = {
        "small": {
            "backbone": "wan2.1-1.3b",
            "model": "synthetic",
            "config": {"steps": 4, "blocks": 30},
        }
    }
    pool = {"devices": 6, "devices_per_host": 4, "kind": "cuda"}
    config, decision = decided(models=models, pool=pool, streams=[PLAN["streams"][1]])
    admitted = {one.group.name: one.admitted for one in decision.groups}
    fields = deployment_fields(config, admitted, tmp_path)
    assert [(d.host, d.kind, d.worker) for d in fields.devices] == [
        ("host0", "cuda:0", 0),
        ("host0", "cuda:1", 1),
        ("host0", "cuda:2", 2),
        ("host0", "cuda:3", 3),
        ("host1", "cuda:0", 4),
        ("host1", "cuda:1", 5),
    ]


def test_a_plan_without_a_place_for_any_stream_writes_nothing():
    config, _ = decided()
    with pytest.raises(UserError, match="none of them has a place"):
        deployment_fields(config, {}, Path())
