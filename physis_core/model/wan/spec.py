"""What follows from a Wan configuration: shapes, dtypes and bytes. Needs no diffusers."""

from __future__ import annotations

import math

import torch

from physis_core.model.kv import window_bytes
from physis_core.model.protocol import ModelSpec, TensorSpec
from physis_core.model.wan.config import WanConfig


def torch_dtype(config: WanConfig) -> torch.dtype:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    return dtypes[config.dtype]


def wan_spec(config: WanConfig) -> ModelSpec:
    dtype = torch_dtype(config)
    x = TensorSpec(shape=(config.channels, config.latents, config.height, config.width))
    known = TensorSpec(shape=(config.latents,))
    given = (known,) if config.observation == "frames" else ()
    return ModelSpec(
        name="wan",
        steps=config.steps,
        blocks=config.blocks,
        kv=config.kv,
        window_chunks=config.window_chunks,
        sink_chunks=config.sink_chunks,
        latent=(x, *given),
        hidden=(
            TensorSpec(shape=(config.tokens, config.dim), dtype=dtype),
            TensorSpec(shape=(config.token_frames, 6, config.dim), dtype=dtype),
            TensorSpec(shape=(config.token_frames, config.dim), dtype=dtype),
            x,
            *given,
        ),
        observation={"latent": x, "known": known} if given else {},
        outputs={"latent": x},
        kv_bytes=window_bytes(
            window_chunks=config.window_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
            dtype=dtype,
        ),
        block_weight_bytes=(_block_bytes(config),) * config.blocks,
        shared_weight_bytes=_shared_bytes(config),
    )


def _block_bytes(config: WanConfig) -> int:
    """Norms and the modulation table stay in float32 (`keeps_float32`)."""
    dim, ffn = config.dim, config.ffn
    attentions = 2 * (4 * (dim * dim + dim) + 2 * dim)
    feed_forward = dim * ffn + ffn + ffn * dim + dim
    exact = 6 * dim + (2 * dim if config.cross_attn_norm else 0)
    return (attentions + feed_forward) * torch_dtype(config).itemsize + exact * _exact(config)


def _shared_bytes(config: WanConfig) -> int:
    dim = config.dim
    patch = config.channels * math.prod(config.patch)
    moved = (
        (patch * dim + dim)
        + (config.text_dim * dim + dim + dim * dim + dim)
        + (6 * dim * dim + 6 * dim)
        + (dim * patch + patch)
    )
    exact = config.freq_dim * dim + dim + dim * dim + dim + 2 * dim
    return moved * torch_dtype(config).itemsize + exact * _exact(config)


def _exact(config: WanConfig) -> int:
    return max(torch_dtype(config).itemsize, torch.float32.itemsize)


def keeps_float32(name: str) -> bool:
    """Weights that lose too much in 16 bits, by their diffusers name: what diffusers keeps, too."""
    kept = ("time_embedder", "scale_shift_table", "norm2")
    return any(part in kept for part in name.split("."))
