"""The pool benchmark: what it plans of a profile, and how it compares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from physis_core.deployment.file import load_deployment, write_deployment
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.plan.deployed import deployment_fields, simulate_deployed
from physis_core.plan.report import decide
from physis_lab.bench.engine.engine_profile import Measured
from physis_lab.bench.plan.pool import (
    MODELS,
    WORKERS,
    ClassTimes,
    Compared,
    figures_of,
    plan_of,
    profile_from,
)


def measured(name: str, seconds: float = 0.004) -> Measured:
    return Measured(
        costs={b: {1: seconds, 2: 1.5 * seconds} for b in range(MODELS[name]["blocks"])},
        factors=(1.0, 1.1, 1.3),
        per_batch_s=0.0005,
        per_send_s=0.0,
        per_hop_s=0.0004,
        per_entry_s=0.0002,
        per_message_s=0.0001,
    )


def test_a_profile_has_the_time_between_batches_in_it_and_its_spread_as_p99():
    spec = load_spec(ModelRef(family="synthetic", config=MODELS["deep"]))
    profile = profile_from("deep", spec, measured("deep"))
    assert profile.block_costs[3].p50_s == pytest.approx({1: 0.0045, 2: 0.0065})
    assert profile.block_costs[3].p99_s[1] == pytest.approx(0.0045 * 1.296)


def test_the_planned_streams_ask_for_the_load_and_the_file_simulates(tmp_path: Path):
    config = plan_of({name: measured(name) for name in MODELS}, copies=2, load=0.6)
    work_s = sum(
        group.copies
        * config.models[group.model].steps
        * sum(cost.p50_s[1] for cost in config.models[group.model].block_costs)
        / group.slo.period_s
        for group in config.streams
    )
    assert work_s / WORKERS == pytest.approx(0.6)
    decision = decide(config)
    assert [len(one.admitted) for one in decision.groups] == [2, 2]
    admitted = {one.group.name: one.admitted for one in decision.groups}
    path = tmp_path / "deployment.yaml"
    write_deployment(deployment_fields(config, admitted, tmp_path), path, "Written by a test.")
    planned = load_deployment(path)
    assert [d.worker for d in planned.deployment.devices] == [0, 1]
    outcome = simulate_deployed(planned, seconds=5.0)
    assert outcome["refused"] == []
    assert len(outcome["streams"]) == 4


def test_the_worst_class_and_device_of_the_median_round_count():
    times = ClassTimes(interval_p50_s=0.1, response_p50_s=0.05, response_p99_s=0.06, missed=0.0)
    slow = replace(times, response_p50_s=0.06, missed=0.03)

    def one(run: ClassTimes, drift: float) -> Compared:
        return Compared(
            planned={"a": times, "b": times},
            simulated={"a": times, "b": times},
            run={"a": times, "b": run},
            memory_planned={0: 100.0, 1: 100.0},
            memory_run={0: 100.0, 1: 90.0},
            drift=drift,
        )

    figures = figures_of([one(times, 0.1), one(slow, 0.2), one(slow, 0.3)])
    assert figures["pool.response_error"].value == pytest.approx(0.2)
    assert figures["pool.response_error"].spread == pytest.approx(0.1)
    assert not figures["pool.response_error"].met
    assert figures["pool.miss_difference_pp"].value == pytest.approx(3.0)
    assert figures["pool.memory_error"].value == pytest.approx(0.1)
    assert figures["pool.interval_error"].met
    assert figures["pool.machine_drift"].value == pytest.approx(0.2)
