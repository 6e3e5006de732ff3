"""Whole simulations from their YAML: arrivals, refusals, fragmentation, and the quick check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from physis_core.cli import plan as plan_verb
from physis_core.cli import simulate as simulate_verb
from physis_core.cli.main import main
from physis_core.plan.config import read_plan
from physis_core.plan.fields import Fields
from physis_core.sim.coarse import PlacedStream, RunCosts, component, keeps_slo
from physis_core.sim.config import read_simulation
from physis_core.sim.run import simulate
from physis_core.types import UserError

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


def outcome(values: dict[str, Any]) -> dict[str, Any]:
    fields = Fields(values, "")
    plan = read_plan(fields, Path())
    return simulate(plan, read_simulation(fields.fields("simulate"), plan))


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
        (changed(models={}), "models"),
        (changed(models={"world": {"backbone": "gpt"}}), "models.world.backbone"),
        (changed(streams=[{**CONFIG["streams"][0], "model": "x"}]), "streams[0].model"),
        (changed(simulate={"seconds": 0}), "simulate.seconds"),
        (changed(simulate={"seconds": 5, "warmup_s": 9}), "simulate.warmup_s"),
        (changed(simulate={"stalls": [{"device": 7}]}), "simulate.stalls[0].device"),
        (changed(simulate={"noise": {"p99_ratio": 0.1}}), "simulate.noise.p99_ratio"),
        (
            changed(simulate={"arrivals": {"trace": [{"stream": "x"}]}}),
            "simulate.arrivals.trace[0].stream",
        ),
    ],
)
def test_bad_yaml_gets_one_line_with_the_field(
    values: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(values))
    assert main(["simulate", str(path)]) == 2
    said = capsys.readouterr().err.strip()
    assert field in said
    assert "\n" not in said


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
    with pytest.raises(UserError, match="cannot stand beside"):
        read_plan(Fields(changed(streams=[CONFIG["streams"][0], other]), ""), Path())


def test_the_quick_check_tells_light_from_impossible() -> None:
    plan = read_plan(Fields({k: v for k, v in CONFIG.items() if k != "simulate"}, ""), Path())
    stages = plan.models["world"].graph.stages

    def placed(count: int, period_s: float) -> list[PlacedStream]:
        return [
            PlacedStream(
                stream_id=f"s{i}", model="world", device_of=(0,) * stages, period_s=period_s
            )
            for i in range(count)
        ]

    costs = RunCosts(plan.models, 16)
    assert keeps_slo(placed(2, 1.6), costs, plan.pool).kept
    verdict = keeps_slo(placed(12, 0.3), costs, plan.pool)
    assert not verdict.kept
    assert verdict.reason


def test_components_are_streams_that_share_devices() -> None:
    def on(name: str, *devices: int) -> PlacedStream:
        return PlacedStream(stream_id=name, model="m", device_of=devices, period_s=1.0)

    streams = [on("a", 0, 1), on("b", 1, 2), on("c", 3, 3), on("d", 2, 4)]
    assert {s.stream_id for s in component(streams, "a")} == {"a", "b", "d"}
    assert {s.stream_id for s in component(streams, "c")} == {"c"}
