"""Build a Wan model with the weights of its own blocks alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from physis_core.model.shapes import shapes_only
from physis_core.model.wan.attention import CachedTextAttention, WindowedSelfAttention
from physis_core.model.wan.checkpoint import StoredTensor, check_tensors, open_checkpoint
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.model import WanModel, owned_blocks
from physis_core.model.wan.spec import keeps_float32, torch_dtype
from physis_core.types import UserError


def build_wan(
    config: WanConfig,
    checkpoint: str | None = None,
    blocks: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
) -> WanModel:
    """Without a checkpoint the weights are random, a function of `seed` and their names alone.

    Raises:
        UserError: diffusers is missing, or configuration or checkpoint do not fit.
    """
    owned = owned_blocks(config, blocks)
    shared, layers = _empty_modules(config, owned)
    expected = _expected(config, shared, layers)
    stored = None
    if checkpoint is not None:
        stored = open_checkpoint(checkpoint)
        check_tensors(checkpoint, stored, expected)
    target = torch.device(device)
    for part in _unneeded(config, owned):
        _drop(shared, part)
    _fill(shared, "", config, stored, target)
    for number, layer in layers.items():
        _fill(layer, f"blocks.{number}.", config, stored, target)
    return WanModel(config, shared, layers, target)


def _empty_modules(
    config: WanConfig, owned: tuple[int, ...]
) -> tuple[nn.Module, dict[int, nn.Module]]:
    """diffusers' modules on the meta device: shapes without memory."""
    try:
        from diffusers.models.transformers.transformer_wan import (
            WanTransformer3DModel,
            WanTransformerBlock,
        )
    except ImportError as error:
        raise UserError(
            "model.family", "wan", f"needs diffusers: pip install diffusers ({error})"
        ) from None
    with shapes_only():
        shared = WanTransformer3DModel(
            patch_size=config.patch,
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            in_channels=config.channels,
            out_channels=config.channels,
            text_dim=config.text_dim,
            freq_dim=config.freq_dim,
            ffn_dim=config.ffn,
            num_layers=0,
            cross_attn_norm=config.cross_attn_norm,
            eps=config.eps,
            # Not used: positions are relative to the window.
            rope_max_seq_len=1,
        )
        layers: dict[int, nn.Module] = {}
        for number in owned:
            layer: Any = WanTransformerBlock(
                config.dim,
                config.ffn,
                config.heads,
                cross_attn_norm=config.cross_attn_norm,
                eps=config.eps,
            )
            layer.attn1.set_processor(WindowedSelfAttention())
            layer.attn2.set_processor(CachedTextAttention())
            layers[number] = layer
    _drop(shared, "rope")
    return shared, layers


def _expected(
    config: WanConfig, shared: nn.Module, layers: Mapping[int, nn.Module]
) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of the whole model, blocks of other ranks included."""
    shapes = {name: tuple(p.shape) for name, p in shared.named_parameters()}
    one = next(iter(layers.values()))
    for number in range(config.blocks):
        for name, p in one.named_parameters():
            shapes[f"blocks.{number}.{name}"] = tuple(p.shape)
    return shapes


def _unneeded(config: WanConfig, owned: tuple[int, ...]) -> list[str]:
    parts = []
    if 0 not in owned:
        parts += ["patch_embedding", "condition_embedder.time_embedder"]
        parts += ["condition_embedder.time_proj"]
    if config.blocks - 1 not in owned:
        parts += ["proj_out", "scale_shift_table"]
    return parts


def _drop(module: nn.Module, name: str) -> None:
    parent, _, leaf = name.rpartition(".")
    delattr(module.get_submodule(parent), leaf)


def _fill(
    module: nn.Module,
    prefix: str,
    config: WanConfig,
    stored: Mapping[str, StoredTensor] | None,
    device: torch.device,
) -> None:
    """Give a module on the meta device its weights."""
    weights: dict[str, Tensor] = {}
    for name, empty in module.named_parameters():
        full = prefix + name
        value = _random(full, empty, config.seed) if stored is None else stored[full].read()
        dtype = torch_dtype(config)
        if keeps_float32(full):
            dtype = torch.promote_types(dtype, torch.float32)
        weights[name] = value.to(device=device, dtype=dtype)
    module.load_state_dict(weights, strict=True, assign=True)
    module.eval().requires_grad_(False)


def _random(name: str, like: Tensor, seed: int) -> Tensor:
    """Scaled so that activations keep their size; norms are near one, biases small."""
    generator = torch.Generator().manual_seed(seed * 2**32 + zlib.crc32(name.encode()))
    drawn = torch.randn(like.shape, generator=generator)
    if like.ndim == 1:
        return drawn * 0.02 + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
    scale: float = like[0].numel() ** -0.5
    return drawn * scale
