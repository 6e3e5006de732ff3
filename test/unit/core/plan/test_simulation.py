"""Whole simulations from their YAML: arrivals, refusals, fragmentation, and the quick check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.deployment.profile import ModelProfile
from physis_core.files import read_file
from physis_core.plan.config import read_plan
from physis_core.plan.report import admission_report, decide
from physis_core.plan.simulation import simulate, simulation_of
from physis_core.plan.slo_check import (
    PlacedStream,
    RunCosts,
    check_scenario,
    component,
    keeps_slo,
)
from physis_core.sim.scenario import Scenario
from physis_core.sim.simulator import Simulator
from physis_core.types import UserError
from physis_ros.cli import plan as plan_verb
from physis_ros.cli import simulate as simulate_verb
from physis_ros.cli.main import main

CONFIG: dict[str, Any] = {
    "device": {
        "peak_tflops": 989,
        "bandwidth_gb_s": 3350,
        "memory_gib": 72,
        "achieved_compute": 0.25,
        "achieved_bandwidth": 0.7,
        "overhead_ms": 0.9,
    },
    "pool": {"devices": 1},
    "models": {"world": {"backbone": "wan2.2-5b"}},
    "streams": [
        {
            "name": "w",
            "model": "world",
            "copies": 2,
            "slo": {"count": "frames", "per_chunk": 4, "rate": 4},
        }
    ],
    "simulate": {
        "seconds": 20,
        "warmup_s": 4,
        "arrivals": {"poisson": {"rate_per_s": 0.5, "mean_stay_s": 6, "streams": ["w"]}},
    },
}


def changed(**parts: Any) -> dict[str, Any]:
    return {**CONFIG, **parts}


def poisson(**parts: Any) -> dict[str, Any]:
    process = {"rate_per_s": 0.5, "mean_stay_s": 6, "streams": ["w"], **parts}
    return changed(simulate={"seconds": 5, "arrivals": {"poisson": process}})


def outcome(values: dict[str, Any]) -> dict[str, Any]:
    return simulate(simulation_of(read_plan(values, Path())))


def test_streams_come_go_and_are_refused() -> None:
    first = outcome(CONFIG)
    assert first["admitted"] >= 2
    assert first["refused"]
    assert {"reason", "short_resource", "nearest"} <= set(first["refused"][0])
    assert first["all_streams"]["deadline_misses"] == 0
    assert first["fragmentation"][-1]["open"] >= 1
    again = outcome(CONFIG)
    drop = {"cpu_s", "tasks_per_s"}
    assert {k: v for k, v in first.items() if k not in drop} == {
        k: v for k, v in again.items() if k not in drop
    }


@pytest.mark.parametrize(
    ("values", "field"),
    [
        (changed(pool={"devices": 0}), "pool.devices"),
        (changed(pool={"devices": 3, "colour": 1}), "pool.colour"),
        # A misspelt field is named itself, not the one that is missing for it.
        (changed(pool={"device": 3}), "pool.device: 3: unknown"),
        ({**changed(pool=None), "pol": {"devices": 3}}, "pol: {'devices': 3}: unknown"),
        (changed(simulat={}), "simulat: {}: unknown"),
        (changed(models={"world": {"profile": "no.json"}}), "models.world.profile"),
        (
            changed(models={"world": {"backbone": "wan2.2-5b", "latents_per_chunk": 4}}),
            "models.world.latents_per_chunk",
        ),
        (
            changed(simulate={"noise": {"relative": 0.1, "p99_ratio": 1.2}}),
            "simulate.noise.p99_ratio: 1.2",
        ),
        (changed(models={}), "models"),
        (changed(models={"world": {"backbone": "gpt"}}), "models.world.backbone"),
        (changed(streams=[{**CONFIG["streams"][0], "model": "x"}]), "streams[0].model"),
        (changed(simulate={"seconds": 0}), "simulate.seconds"),
        (changed(simulate={"seconds": 5, "warmup_s": 9}), "simulate.warmup_s"),
        (
            changed(simulate={"stalls": [{"device": 7, "at_s": 1, "seconds": 1}]}),
            "simulate.stalls[0].device",
        ),
        (changed(simulate={"noise": {"p99_ratio": 0.1}}), "simulate.noise.p99_ratio"),
        (
            changed(simulate={"arrivals": {"trace": [{"stream": "x", "at_s": 1}]}}),
            "simulate.arrivals.trace[0].stream",
        ),
        (poisson(streams=[]), "simulate.arrivals.poisson.streams"),
        (poisson(streams=[["w"]]), "simulate.arrivals.poisson.streams[0]"),
        (poisson(rate_per_s=1e30), "simulate.arrivals.poisson.rate_per_s"),
        (poisson(mean_stay_s=float("nan")), "simulate.arrivals.poisson.mean_stay_s"),
    ],
)
@pytest.mark.parametrize("verb", ["simulate", "plan"])
def test_bad_yaml_gets_one_line_with_the_field(
    verb: str,
    values: dict[str, Any],
    field: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(values))
    assert main([verb, str(path)]) == 2
    said = capsys.readouterr().err.strip()
    assert field in said
    assert "\n" not in said


def test_the_simulation_lets_in_what_the_plan_admits() -> None:
    # Two kinds of periods that are not multiples, more than fit, the last ones refused.
    few = changed(pool={"devices": 2})
    short, long = few["streams"][0], dict(few["streams"][0])
    long["name"], long["slo"] = "slow", {**short["slo"], "rate": short["slo"]["rate"] / 1.7}
    few["streams"] = [{**short, "copies": 20}, {**long, "copies": 20}]
    few["simulate"] = {"seconds": 2}
    plan = read_plan(few, Path())
    planned = admission_report(decide(plan))["streams"]
    outcome = simulate(simulation_of(plan))
    assert 0 < planned[0]["admitted"] < 20
    names = [row["stream"] for row in outcome["streams"]]
    for row in planned:
        own = [name for name in names if name.rsplit("-", 1)[0] == row["stream"]]
        assert own == list(row["placement"])
    history = outcome["fragmentation"]
    assert history[-1]["at_s"] == 2.0
    assert history[-1]["stranded_memory"] == history[-2]["stranded_memory"]


def test_a_field_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("pool: {devices: 1}\nmodels: {}\npool: {devices: 2}\n")
    with pytest.raises(UserError, match="line 3: key 'pool' appears twice"):
        read_file(path)


def test_the_verbs_write_what_they_print(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    picture, result = tmp_path / "p.png", tmp_path / "r.json"
    assert main(["plan", str(path), "--pareto", "--plot", str(picture), "--json", str(result)]) == 0
    assert picture.stat().st_size > 0
    assert '"admission"' in result.read_text()
    run = tmp_path / "s.png"
    assert main(["simulate", str(path), "--seconds", "6", "--plot", str(run)]) == 0
    assert run.stat().st_size > 0
    assert plan_verb.SUMMARY
    assert simulate_verb.SUMMARY


def test_rates_of_two_meanings_of_one_model_are_refused() -> None:
    other = {**CONFIG["streams"][0], "name": "v"}
    other["slo"] = {"count": "control_steps", "per_chunk": 16, "rate": 50}
    with pytest.raises(UserError, match="cannot be compared with"):
        read_plan(changed(streams=[CONFIG["streams"][0], other]), Path())


def placed(models: Mapping[str, ModelProfile], count: int, period_s: float) -> list[PlacedStream]:
    return [
        PlacedStream(
            stream_id=f"s{i}",
            model="world",
            blocks=models["world"].blocks,
            device_of=(0,) * models["world"].graph.stages,
            period_s=period_s,
        )
        for i in range(count)
    ]


def test_the_quick_check_tells_light_from_impossible() -> None:
    plan = read_plan({k: v for k, v in CONFIG.items() if k != "simulate"}, Path())
    costs = RunCosts(plan.models, 16)
    assert keeps_slo(placed(plan.models, 2, 1.6), costs, plan.pool).kept
    verdict = keeps_slo(placed(plan.models, 12, 0.3), costs, plan.pool)
    assert not verdict.kept
    assert verdict.reason


def test_the_quick_check_knows_that_clean_chunks_are_serial() -> None:
    plan = read_plan({k: v for k, v in CONFIG.items() if k != "simulate"}, Path())
    clean = {"world": replace(plan.models["world"], kv="clean")}
    pool = replace(plan.pool, devices=10)
    blocks = clean["world"].blocks
    device_of = tuple(s % blocks * 10 // blocks for s in range(clean["world"].graph.stages))
    alone = replace(placed(clean, 1, 0.2)[0], device_of=device_of)
    work_s = sum(clean["world"].table().predict_s(s % blocks, 1) for s in range(5 * blocks))
    # Ten devices have ten times the time that a chunk needs, but one chunk is in work at a time.
    costs = RunCosts(clean, 16)
    assert not keeps_slo([replace(alone, period_s=0.5 * work_s)], costs, pool).kept
    assert keeps_slo([replace(alone, period_s=1.5 * work_s)], costs, pool).kept


def judged_at_the_end(scenario: Scenario, after_s: float) -> bool:
    """The same judgement of the same time without stopping at the first failure."""
    simulator = Simulator(scenario)
    simulator.run()
    for trace in simulator.traces:
        period_s = trace.spec.period_s
        assert period_s is not None
        late = [
            c
            for c in trace.chunks
            if c.release_s >= after_s - period_s
            and c.deadline_s <= scenario.end_s
            and not c.exit_s <= c.deadline_s
        ]
        done = [c.exit_s - c.release_s for c in trace.chunks if c.exit_s == c.exit_s]
        half = len(done) // 2
        grows = len(done) >= 8 and max(done[half:]) > max(done[:half]) + period_s
        if trace.dropped or late or grows:
            return False
    return True


@settings(max_examples=25, deadline=None)
@given(
    periods=st.lists(st.sampled_from([0.4, 0.7, 1.1, 1.6]), min_size=1, max_size=9),
    places=st.lists(st.integers(0, 2), min_size=9, max_size=9),
)
def test_stopping_at_the_first_failure_changes_no_verdict(
    periods: list[float], places: list[int]
) -> None:
    plan = read_plan({k: v for k, v in CONFIG.items() if k != "simulate"}, Path())
    pool = replace(plan.pool, devices=3)
    streams = [
        replace(
            placed(plan.models, 1, period_s)[0],
            stream_id=f"s{i}",
            device_of=(places[i],) * plan.models["world"].graph.stages,
        )
        for i, period_s in enumerate(periods)
    ]
    costs = RunCosts(plan.models, 16)
    scenario, after_s = check_scenario(streams, costs, pool)
    verdict = keeps_slo(streams, costs, pool)
    assert verdict.kept == judged_at_the_end(scenario, after_s)
    assert not verdict.kept or verdict.chunks >= len(streams)


def test_components_are_streams_that_share_devices() -> None:
    def on(name: str, *devices: int) -> PlacedStream:
        return PlacedStream(stream_id=name, model="m", blocks=2, device_of=devices, period_s=1.0)

    streams = [on("a", 0, 1), on("b", 1, 2), on("c", 3, 3), on("d", 2, 4)]
    assert {s.stream_id for s in component(streams, "a")} == {"a", "b", "d"}
    assert {s.stream_id for s in component(streams, "c")} == {"c"}
