"""Deployment files: a person's, the planner's, and those that do not fit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from physis_core.decoding import decode
from physis_core.deployment.file import (
    DeploymentFields,
    is_deployment,
    load_deployment,
    read_deployment,
    write_deployment,
)
from physis_core.types import UserError

ROOT = Path(__file__).resolve().parents[4]
SLO = {"count": "action_chunks", "per_chunk": 1, "period_ms": 100}
PROFILE = {
    "name": "p",
    "source": "measured",
    "steps": 2,
    "blocks": 2,
    "window_chunks": 2,
    "kv_bytes": 1.0,
    "hidden_bytes": 1.0,
    "block_costs": [{"weight_bytes": 1.0, "p50_ms": {1: 2.0, 2: 3.0}}],
}
GIVEN: dict[str, Any] = {
    "models": {
        "a": {"model": "synthetic", "config": {"steps": 2, "blocks": 2}, "profile": PROFILE},
        "b": {"model": "synthetic", "config": {"steps": 3, "blocks": 4}},
    },
    "devices": [{"worker": 0}, {"worker": 1}],
    "routes": {
        "a0": {"model": "a", "partition": "block", "devices": [0, 1]},
        "b0": {"model": "b", "ranks": [0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1], "devices": [1, 0]},
    },
    "streams": [
        {"name": "arm", "routes": ["a0", "a0"], "slo": SLO, "priority": 2},
        {"name": "other", "routes": ["b0"], "slo": SLO},
    ],
    "links": {"fast": {"latency_us": 20, "bandwidth_gb_s": 100}},
    "memory_gib": 2,
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GIVEN with the value at `path`, such as `routes.a0.devices`, replaced; None: taken out."""
    values = copy.deepcopy(GIVEN)
    inside: Any = values
    *steps, last = [int(s) if s.isdigit() else s for s in path.split(".")]
    for step in steps:
        inside = inside[step]
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    return values


def test_a_file_says_what_runs_where():
    planned = read_deployment(GIVEN, Path())
    deployment = planned.deployment
    assert list(deployment.models) == ["a", "b"]
    assert [route.device_of_rank for route in deployment.routes] == [(0, 1), (1, 0)]
    assert deployment.workers == 2
    assert deployment.max_batch == 8
    assert [(s.stream_id, s.model, s.route, s.priority) for s in planned.streams] == [
        ("arm-0", "a", 0, 2),
        ("arm-1", "a", 0, 2),
        ("other", "b", 1, 0),
    ]
    assert planned.streams[0].slo.period_s == pytest.approx(0.1)
    assert planned.profiles["a"].block_costs[1].p50_s == {1: 0.002, 2: 0.003}
    assert planned.fast.latency_s == pytest.approx(20e-6)
    assert planned.memory_bytes == 2 * 2**30
    assert deployment.costs is None, "real devices measure their own"


def test_what_is_written_is_what_is_read(tmp_path):
    path = tmp_path / "deployment.yaml"
    write_deployment(decode(GIVEN, DeploymentFields), path, "Written by a test.")
    assert is_deployment(path)
    again = load_deployment(path)
    assert again == read_deployment(GIVEN, tmp_path)
    assert "priority: 0" not in path.read_text(), "defaults are not written"


def test_emulated_devices_take_their_costs_from_the_profiles():
    values = changed("devices", [{"kind": "emulated"}, {"kind": "emulated"}])
    with pytest.raises(UserError, match=r"models\.b\.profile: None: emulated devices need one"):
        read_deployment(values, Path())
    values["models"]["b"]["profile"] = {**PROFILE, "steps": 3, "blocks": 4}
    costs = read_deployment(values, Path()).deployment.costs
    assert costs is not None
    assert sorted(costs) == [0, 1, 2, 3, 4, 5]
    assert costs[5] == {1: 0.002, 2: 0.003}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("models.a.model", "nobody", r"models\.a\.model: .*nobody.*there is no such file"),
        ("models.a.config", {"steps": 0}, r"models\.a\.steps: 0"),
        ("models.a.profile", "no.yaml", r"models\.a\.profile: .*no\.yaml': there is no such file"),
        ("models.a.profile", {**PROFILE, "blocks": 3}, r"models\.a\.profile.*of another model"),
        ("models.a.profile", {**PROFILE, "steps": "x"}, r"models\.a\.profile\.steps: 'x'"),
        ("models.a.colour", "red", r"models\.a\.colour: 'red': unknown"),
        ("routes.a0.model", "c", r"routes\.a0\.model: 'c': must be one of a, b"),
        ("routes.a0.devices", [0, 2], r"device_of_rank: 2: there are 2 devices"),
        ("routes.a0.devices", [0, 1, 0], r"routes\.a0\.devices.*no block partition of more than 2"),
        ("routes.a0.partition", None, r"routes\.a0\.partition: None: give either"),
        ("routes.b0.partition", "block", r"routes\.b0\.partition: 'block': give either"),
        ("routes.b0.ranks", [0, 1], r"routes\.b0\.rank_of: 2: needs one rank per stage, 12"),
        ("routes.a0", None, r"models\.a: 'a': no route runs it"),
        ("streams.0.routes", ["a0", "b0"], r"streams\[0\]\.routes\[1\]: 'b0': is of b"),
        ("streams.0.routes", ["c0"], r"streams\[0\]\.routes\[0\]: 'c0': must be one of a0, b0"),
        ("streams.1.name", "arm", r"streams\[1\]\.name: 'arm': is the name of another"),
        ("streams.0.slo", {"count": "frames"}, r"streams\[0\]\.slo\.per_chunk: None: is needed"),
        ("devices.0.kind", "gpu", r"devices.*kind|device: 'gpu': must be one of cpu, cuda:N"),
        ("engine", {"max_batch": 0}, r"engine\.max_batch: 0"),
        ("memory_gib", -1, r"memory_gib: -1"),
    ],
)
def test_what_does_not_fit_is_one_line_with_file_field_and_value(tmp_path, path, value, said):
    file = tmp_path / "d.yaml"
    file.write_text(yaml.safe_dump(changed(path, value)))
    with pytest.raises(UserError, match=said) as caught:
        load_deployment(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_the_shipped_deployment_fits():
    planned = load_deployment(ROOT / "config" / "deployments" / "two_policies.yaml")
    assert [stream.stream_id for stream in planned.streams] == ["arm", "pusher"]
