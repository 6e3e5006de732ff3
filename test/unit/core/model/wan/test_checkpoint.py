from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

pytest.importorskip("diffusers", reason="the wan extra is not installed")

from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.keys import canonical, from_original, strip
from physis_core.model.wan.loading import build_wan
from physis_core.types import UserError

torch.set_num_threads(1)
CONFIG = WanConfig(
    heads=1,
    head_dim=12,
    ffn=16,
    blocks=3,
    channels=2,
    text_dim=6,
    text_tokens=4,
    freq_dim=8,
    height=2,
    width=2,
    dtype="float32",
)
BLOCK = {
    "self_attn": "attn1",
    "cross_attn": "attn2",
    ".q.": ".to_q.",
    ".k.": ".to_k.",
    ".v.": ".to_v.",
    ".o.": ".to_out.0.",
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "modulation": "scale_shift_table",
}
TOP = {
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
}


def weights() -> dict[str, Tensor]:
    """Of the whole small model by diffusers' names, other than those of `seed`."""
    model = build_wan(CONFIG)
    found = dict(model._shared.state_dict())
    for number, block in model._blocks.items():
        found.update({f"blocks.{number}.{k}": v for k, v in block.state_dict().items()})
    generator = torch.Generator().manual_seed(1)
    return {k: torch.randn(v.shape, generator=generator) for k, v in found.items()}


def original_name(name: str) -> str:
    """The other way round from `keys.py`, written by itself."""
    pairs = BLOCK if name.startswith("blocks.") else TOP
    for original, ours in pairs.items():
        name = name.replace(ours, original)
    return name


def as_original(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {original_name(k): v for k, v in tensors.items()}


def wrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As sharded training with activation checkpoints leaves the names."""
    found = {}
    for name, tensor in as_original(tensors).items():
        name = re.sub(r"(blocks\.\d+\.)", r"\1_checkpoint_wrapped_module.", name)
        found["model._fsdp_wrapped_module." + name] = tensor
    return found


def save_pt(content: Any, path: Path) -> Path:
    torch.save(content, path)
    return path


def save_st(tensors: dict[str, Tensor], path: Path) -> Path:
    save_file(tensors, path)
    return path


def save_shards(tensors: dict[str, Tensor], path: Path) -> Path:
    path.mkdir()
    names = list(tensors)
    for part in range(3):
        save_file({k: tensors[k] for k in names[part::3]}, path / f"part-{part}.safetensors")
    return path


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + k: v for k, v in tensors.items()}


FORMS: dict[str, Callable[[dict[str, Tensor], Path], Path]] = {
    "diffusers": lambda w, p: save_st(w, p / "w.safetensors"),
    "diffusers shards": lambda w, p: save_shards(w, p / "folder"),
    "original": lambda w, p: save_st(as_original(w), p / "w.safetensors"),
    "single file": lambda w, p: save_st(
        prefixed("model.diffusion_model.", as_original(w)), p / "w.safetensors"
    ),
    "original pt": lambda w, p: save_pt(as_original(w), p / "w.pth"),
    "generator": lambda w, p: save_pt(
        {"generator": prefixed("model.", as_original(w)), "step": 3}, p / "w.pt"
    ),
    "generator_ema": lambda w, p: save_pt(
        {
            "generator": prefixed("model.", {k: v + 1 for k, v in as_original(w).items()}),
            "generator_ema": wrapped(w),
        },
        p / "w.pt",
    ),
    "legacy pt": lambda w, p: (
        torch.save(as_original(w), p / "w.bin", _use_new_zipfile_serialization=False),
        p / "w.bin",
    )[1],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_public_form_loads_the_same_weights(form: str, tmp_path: Path) -> None:
    expected = weights()
    path = FORMS[form](expected, tmp_path)
    model = build_wan(CONFIG, str(path), blocks=[0, 2])
    found = dict(model._shared.state_dict())
    for number, block in model._blocks.items():
        found.update({f"blocks.{number}.{k}": v for k, v in block.state_dict().items()})
    assert set(found) == {k for k in expected if not k.startswith("blocks.1.")}
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


def test_the_affine_norm_changes_its_name() -> None:
    assert from_original("blocks.4.norm3.weight") == "blocks.4.norm2.weight"
    assert from_original("blocks.14.cross_attn.o.bias") == "blocks.14.attn2.to_out.0.bias"
    assert canonical(["blocks.4.norm2.weight", "blocks.4.attn1.to_q.bias"]) == {
        "blocks.4.norm2.weight": "blocks.4.norm2.weight",
        "blocks.4.attn1.to_q.bias": "blocks.4.attn1.to_q.bias",
    }
    assert strip("model._fsdp_wrapped_module.blocks.0.modulation") == "blocks.0.modulation"


def without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if k != name}


BROKEN: dict[str, tuple[Callable[[dict[str, Tensor], Path], Path], str]] = {
    "missing": (
        lambda w, p: save_st(without(w, "blocks.1.attn1.to_q.bias"), p / "w.safetensors"),
        "lacks blocks.1.attn1.to_q.bias",
    ),
    "shape": (
        lambda w, p: save_st(
            {**as_original(w), "blocks.2.ffn.0.bias": torch.zeros(3)}, p / "w.safetensors"
        ),
        r"blocks.2.ffn.0.bias has shape \[3\], must have \[16\]",
    ),
    "more blocks": (
        lambda w, p: save_st(
            {**as_original(w), "blocks.3.ffn.0.bias": torch.zeros(16)}, p / "w.safetensors"
        ),
        "blocks.3.ffn.0.bias has no place",
    ),
    "image variant": (
        lambda w, p: save_st(
            {**as_original(w), "img_emb.proj.0.bias": torch.zeros(3)}, p / "w.safetensors"
        ),
        "img_emb.proj.0.bias has no place",
    ),
    "another model": (
        lambda w, p: save_st({"layer.weight": torch.zeros(2)}, p / "w.safetensors"),
        "lacks scale_shift_table",
    ),
    "text": (
        lambda w, p: (p / "w.safetensors").write_text("hello") and p / "w.safetensors",
        "is not a safetensors file",
    ),
    "text as pt": (
        lambda w, p: (p / "w.pt").write_text("hello") and p / "w.pt",
        "is not a file of plain tensors",
    ),
    "objects": (lambda w, p: save_pt({"x": Path("/")}, p / "w.pt"), "is not a file of plain"),
    "no tensors": (lambda w, p: save_pt({"step": 3}, p / "w.pt"), "holds no dict of tensors"),
    "a list": (lambda w, p: save_pt([torch.zeros(1)], p / "w.pt"), "holds no dict of tensors"),
    "empty folder": (lambda w, p: p, "holds no .safetensors file"),
    "nothing": (lambda w, p: p / "none.pt", "no such file"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_wrong_file_is_one_line(kind: str, tmp_path: Path) -> None:
    make, complaint = BROKEN[kind]
    path = make(weights(), tmp_path)
    with pytest.raises(UserError, match=complaint) as caught:
        build_wan(CONFIG, str(path), blocks=[0])
    assert str(caught.value).startswith("model.checkpoint: ")
    assert "\n" not in str(caught.value)
