from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

pytest.importorskip("diffusers", reason="the wan extra is not installed")

from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.model.conformance import broken_promises
from physis_core.model.loading import load, load_spec
from physis_core.model.registry import ModelRef
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.loading import build_wan
from physis_core.model.wan.model import WanModel
from physis_core.model.wan.spec import wan_spec
from physis_core.plan.placement.cost import rank_bytes as planner_bytes
from physis_core.types import UserError
from physis_core.worker.warmup import _weight_bytes

torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "heads": 2,
    "head_dim": 12,
    "ffn": 32,
    "blocks": 2,
    "channels": 4,
    "text_dim": 10,
    "text_tokens": 7,
    "freq_dim": 16,
    "height": 4,
    "width": 4,
    "steps": 2,
    "window_chunks": 3,
    "dtype": "float32",
}


@settings(max_examples=6, deadline=None)
@given(
    latents=st.sampled_from([1, 3]),
    steps=st.integers(1, 3),
    window=st.integers(1, 3).flatmap(lambda h: st.tuples(st.just(h), st.integers(0, h - 1))),
    kv=st.sampled_from(["noisy", "clean"]),
    observation=st.sampled_from(["none", "frames"]),
    rows=st.integers(1, 4),
)
def test_wan_conforms(
    latents: int, steps: int, window: tuple[int, int], kv: str, observation: str, rows: int
) -> None:
    config = WanConfig(
        **{
            **SMALL,
            "latents": latents,
            "steps": steps,
            "window_chunks": window[0],
            "sink_chunks": window[1],
            "kv": kv,
            "observation": observation,
        }
    )
    generator = torch.Generator().manual_seed(0)
    prompts: list[dict[str, Any]] = [
        {"text_embedding": torch.randn(n, 10, generator=generator)} for n in (3, 7)
    ]

    def build(blocks: Iterable[int] | None) -> WanModel:
        return build_wan(config, blocks=blocks)

    seen = None
    if observation == "frames":
        # Row 0 is shown nothing, so that its output is all made.
        known = torch.randint(0, 2, (rows, latents), generator=generator).float()
        known[0] = 0.0
        frames = torch.randn(rows, 4, latents, 4, 4, generator=generator)
        seen = {"latent": frames, "known": known}
    conditions = [*prompts, {}]
    assert broken_promises(build, conditions=conditions, observation=seen, rows=rows) == []


def test_bfloat16_conforms() -> None:
    config = WanConfig(**{**SMALL, "dtype": "bfloat16"})
    broken = broken_promises(lambda blocks: build_wan(config, blocks=blocks), relative=0.05)
    assert broken == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("norm", [True, False])
def test_the_spec_counts_the_bytes_that_are_there(dtype: str, norm: bool) -> None:
    config = WanConfig(**{**SMALL, "blocks": 3, "dtype": dtype, "cross_attn_norm": norm})
    for owned in ([0], [1], [2], [0, 1], [1, 2], [0, 1, 2]):
        assert rank_bytes(build_wan(config, blocks=owned)) == planned_bytes(config, owned)


PUBLIC = {
    "Wan2.1 1.3B": {"heads": 12, "ffn": 8960, "blocks": 30},
    "Wan2.2 5B": {"heads": 24, "ffn": 14336, "blocks": 30, "channels": 48},
    "Wan2.1 14B": {"heads": 40, "ffn": 13824, "blocks": 40},
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_rank_of_a_public_model_holds_what_the_plan_says(name: str) -> None:
    """At true size in bfloat16, on the meta device: first, middle and last of seven ranks."""
    config = WanConfig(**PUBLIC[name])
    ranks = np.array_split(np.arange(config.blocks), 7)
    for part in (ranks[0], ranks[3], ranks[-1]):
        owned = part.tolist()
        model = build_wan(config, blocks=owned, device="meta")
        assert rank_bytes(model) == planned_bytes(config, owned)


def rank_bytes(model: WanModel) -> int:
    parts = (model._shared, *model._blocks.values())
    return sum(p.numel() * p.element_size() for part in parts for p in part.parameters())


def planned_bytes(config: WanConfig, owned: list[int]) -> float:
    """What the planner reserves for these blocks on one device, from the spec as a profile."""
    spec = wan_spec(config)
    profile = ModelProfile(
        name="wan",
        source="analytic",
        steps=spec.steps,
        blocks=spec.blocks,
        window_chunks=spec.window_chunks,
        kv_bytes=spec.kv_bytes,
        hidden_bytes=1.0,
        shared_weight_bytes=spec.shared_weight_bytes,
        block_costs=tuple(
            BlockCost(weight_bytes=n, p50_s={1: 1.0}, p99_s={1: 1.0})
            for n in spec.block_weight_bytes
        ),
    )
    weights, _ = planner_bytes(profile, owned, 1)
    assert weights == _weight_bytes(spec, owned)
    return weights


def test_a_real_size_costs_what_is_published_without_building_it() -> None:
    spec = load_spec(ModelRef(family="wan"))
    assert spec.block_weight_bytes[1] / 2 == pytest.approx(46.4e6, rel=2e-3)
    assert round(spec.kv_bytes / 2**20) == 192
    assert spec.hidden[0].shape == (1560, 1536)


def test_a_rank_holds_only_what_its_blocks_need() -> None:
    config = WanConfig(**{**SMALL, "blocks": 3})
    middle = build_wan(config, blocks=[1])
    names = {name for name, _ in middle._shared.named_parameters()}
    assert all(name.startswith("condition_embedder.text_embedder") for name in names)
    latent = (torch.zeros(1, 4, 1, 4, 4),)
    with pytest.raises(KeyError, match="block 0"):
        middle.embed(latent, [0])
    hidden = build_wan(config, blocks=[0]).embed(latent, [0])
    with pytest.raises(KeyError, match="last block"):
        middle.head(hidden, [0], [])


def test_loading_by_reference(tmp_path: Path) -> None:
    ref = ModelRef.from_json(ModelRef(family="wan", config=SMALL).to_json())
    model = load(ref, blocks=[0])
    assert model.spec == load_spec(ref)
    text = torch.randn(3, 10)
    save_file({"text": text}, tmp_path / "text.safetensors")
    given_ways = (text, text.numpy(), text.tolist(), str(tmp_path / "text.safetensors"))
    made = [model.condition({"text_embedding": way}) for way in given_ways]
    assert set(made[0]) == {"k0", "v0"}
    for other in made[1:]:
        torch.testing.assert_close(dict(other), dict(made[0]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("height", 5),
        ("head_dim", 7),
        ("dtype", "int4"),
        ("observation", "text"),
        ("patch", [1, 2]),
        ("eps", 0),
        ("shift", 0),
        ("sink_chunks", 3),
        ("layers", 3),
    ],
)
def test_bad_configuration_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"^{field}: "):
        load_spec(ModelRef(family="wan", config={**SMALL, field: value}))


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": "a cat"},
        {"goal": 1},
        {"text_embedding": np.zeros((8, 10))},
        {"text_embedding": np.zeros((3, 9))},
        {"text_embedding": [["x"]]},
        {"text_embedding": np.full((1, 10), np.nan)},
        {"text_embedding": "/no/such/file.safetensors"},
    ],
)
def test_bad_condition_names_the_field(values: dict[str, Any]) -> None:
    model = build_wan(WanConfig(**SMALL), blocks=[0])
    with pytest.raises(UserError, match=rf"^{next(iter(values))}: "):
        model.condition(values)
