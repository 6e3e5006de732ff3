from __future__ import annotations

from pathlib import Path

import pytest

from physis_core.deployment.profile import load_profile, read_profile
from physis_core.model.backbones import BACKBONES
from physis_core.plan.analytic import DeviceModel, analytic_profile, block_flops
from physis_core.types import UserError

DEVICE = DeviceModel(
    name="test",
    peak_tflops=1000,
    bandwidth_gb_s=3000,
    memory_gib=72,
    achieved_compute=0.25,
    achieved_bandwidth=0.7,
    overhead_ms=1,
)

MINIMAL = {
    "name": "m",
    "source": "measured",
    "steps": 4,
    "blocks": 3,
    "window_chunks": 8,
    "kv_bytes": 10,
    "hidden_bytes": 5,
    "block_costs": [{"weight_bytes": 7, "p50_ms": {1: 1.0, 2: 1.5}, "p99_ms": {1: 1.1, 2: 1.7}}],
}


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_profiles_survive_their_file(tmp_path: Path, suffix: str) -> None:
    profile = analytic_profile(BACKBONES["wan2.1-14b"], DEVICE)
    path = tmp_path / f"profile{suffix}"
    profile.save(path)
    loaded = load_profile(path)
    assert loaded.block_costs[0].p50_s == pytest.approx(profile.block_costs[0].p50_s)
    assert loaded.assumptions == profile.assumptions
    assert loaded.graph == profile.graph


@pytest.mark.parametrize(
    ("name", "kv_mib"),
    [("wan2.1-1.3b", 192), ("wan2.2-5b", 186), ("wan2.1-14b", 213), ("minimax-h3-33b", 496)],
)
def test_kv_of_a_stage_is_that_of_the_public_shapes(name: str, kv_mib: float) -> None:
    profile = analytic_profile(BACKBONES[name], DEVICE)
    assert profile.kv_bytes / 2**20 == pytest.approx(kv_mib, abs=0.6)


def test_a_longer_batch_costs_more_in_all_and_less_each() -> None:
    for model in BACKBONES.values():
        row = analytic_profile(model, DEVICE).block_costs[0].p50_s
        sizes = sorted(row)
        for small, large in zip(sizes, sizes[1:]):
            assert row[small] < row[large]
            assert row[large] / large < row[small] / small


def test_longer_chunks_cost_more_and_shorten_the_window() -> None:
    model = BACKBONES["wan2.1-1.3b"]
    assert block_flops(model, 3) == pytest.approx(3 * block_flops(model))
    assert analytic_profile(model, DEVICE, latents_per_chunk=3).window_chunks == 7
    with pytest.raises(UserError, match="divide the window"):
        analytic_profile(model, DEVICE, latents_per_chunk=2)


def test_assumptions_are_all_said() -> None:
    text = " ".join(analytic_profile(BACKBONES["ltx-2.5-22b"], DEVICE).assumptions)
    for word in (
        "peak",
        "tokens per latent",
        "window",
        "whatever the batch",
        "neither is public",
        "VAE",
    ):
        assert word in text


def test_one_cost_stands_for_all_blocks() -> None:
    profile = read_profile(MINIMAL)
    assert len(profile.block_costs) == 3
    assert profile.stream_kv_bytes == 120
    assert profile.weight_bytes == 21


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"blocks": 0}, "blocks"),
        ({"source": "guessed"}, "source"),
        ({"kv": "dirty"}, "kv"),
        ({"kv_bytes": "many"}, "kv_bytes"),
        ({"colour": 1}, "colour"),
        ({"block_costs": [MINIMAL["block_costs"][0]] * 2}, "block_costs"),  # type: ignore[index]
        ({"block_costs": [{"weight_bytes": 1, "p50_ms": {}}]}, "block_costs[0].p50_ms"),
        ({"block_costs": [{"weight_bytes": 1, "p50_ms": {2: 1}}]}, "block_costs[0].p50_ms"),
        (
            {"block_costs": [{"weight_bytes": 1, "p50_ms": {1: 2}, "p99_ms": {1: 1}}]},
            "block_costs[0].p99_ms[1]",
        ),
    ],
)
def test_bad_profiles_name_the_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(UserError) as error:
        read_profile({**MINIMAL, **change})
    assert error.value.field == field
