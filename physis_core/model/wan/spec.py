"""What follows from a Wan configuration: shapes, dtypes and bytes. Needs no diffusers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.kv import window_bytes
from physis_core.model.protocol import ModelSpec, TensorSpec
from physis_core.model.wan.config import WanConfig


def torch_dtype(config: WanConfig) -> torch.dtype:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    return dtypes[config.dtype]


LATENT, KNOWN, FIRST, HAS_FIRST = "latent", "known", "first_latent", "has_first"
"""Names of observed latents; `known` and `has_first` are 1 where there is one, else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSize:
    """Of the VAE's decoder, at its device and for a stream."""

    weight_bytes: int
    state_bytes: int


def wan_spec(config: WanConfig, decoder: DecoderSize | None = None) -> ModelSpec:
    """`decoder` goes with `config.decode`."""
    assert config.decode == (decoder is not None)
    dtype = torch_dtype(config)
    x = TensorSpec(shape=(config.channels, config.latents, config.height, config.width))
    actions = TensorSpec(shape=(config.frames, len(config.action_joints)))
    given: tuple[TensorSpec, ...] = ()
    observation: dict[str, TensorSpec] = {}
    if config.observation != "none":
        given = (TensorSpec(shape=(config.latents,)),)
    if config.observation == "frames":
        observation = {LATENT: x, KNOWN: given[0]}
    elif config.observation == "first_frame":
        one = (config.channels, 1, config.height, config.width)
        observation = {FIRST: TensorSpec(shape=one), HAS_FIRST: TensorSpec(shape=(1,))}
    if config.action_joints:
        given = (*given, actions)
        observation[COMMANDS] = actions
    outputs = {LATENT: x}
    if config.decode:
        pixels = (config.height * config.pixels_per_cell, config.width * config.pixels_per_cell)
        outputs = {FRAMES: TensorSpec(shape=(config.frames, *pixels, 3), dtype=torch.uint8)}
    return ModelSpec(
        name="wan",
        steps=config.steps,
        blocks=config.stages_per_step,
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
        observation=observation,
        outputs=outputs,
        kv_bytes=window_bytes(
            window_chunks=config.window_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
            dtype=dtype,
        ),
        block_weight_bytes=_weight_bytes(config, decoder),
        shared_weight_bytes=_text_bytes(config),
        decoder_kv_bytes=None if decoder is None else decoder.state_bytes,
    )


def _weight_bytes(config: WanConfig, decoder: DecoderSize | None) -> tuple[int, ...]:
    """By block: the first one with what embeds a latent, the last one with the head."""
    weights = [_block_bytes(config)] * config.blocks
    if decoder is not None:
        weights.append(decoder.weight_bytes)
    weights[0] += _embed_bytes(config)
    weights[-1] += _head_bytes(config)
    return tuple(weights)


def _block_bytes(config: WanConfig) -> int:
    """Norms and the modulation table stay in float32 (`keeps_float32`)."""
    dim, ffn = config.dim, config.ffn
    attentions = 2 * (4 * (dim * dim + dim) + 2 * dim)
    feed_forward = dim * ffn + ffn + ffn * dim + dim
    exact = 6 * dim + (2 * dim if config.cross_attn_norm else 0)
    return (attentions + feed_forward) * torch_dtype(config).itemsize + exact * _exact(config)


def _embed_bytes(config: WanConfig) -> int:
    dim = config.dim
    patch = config.channels * math.prod(config.patch)
    moved = patch * dim + dim + 6 * dim * dim + 6 * dim
    exact = config.freq_dim * dim + dim + dim * dim + dim
    if config.action_joints:
        inputs = len(config.action_joints) * config.frames // config.grid[0]
        hidden = config.action_hidden
        exact += inputs * hidden + hidden + hidden * dim + dim
    return moved * torch_dtype(config).itemsize + exact * _exact(config)


def _head_bytes(config: WanConfig) -> int:
    dim = config.dim
    patch = config.channels * math.prod(config.patch)
    return (dim * patch + patch) * torch_dtype(config).itemsize + 2 * dim * _exact(config)


def _text_bytes(config: WanConfig) -> int:
    """Of the layers between text encoder and blocks: each device makes its own K and V."""
    dim = config.dim
    moved = config.text_dim * dim + dim + dim * dim + dim
    return moved * torch_dtype(config).itemsize


def _exact(config: WanConfig) -> int:
    return max(torch_dtype(config).itemsize, torch.float32.itemsize)


def keeps_float32(name: str) -> bool:
    """Weights that lose too much in 16 bits, by their diffusers name: what diffusers keeps, too."""
    kept = ("time_embedder", "scale_shift_table", "norm2", "action_adapter")
    return any(part in kept for part in name.split("."))
