"""A cheap model with random weights and every feature of the protocol, to try the engine with.

It denoises nothing useful. Its numbers depend on all that a real model's depend on (block, step,
window, noise, observation, stream condition), so an engine that mixes up any of them is found out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from physis_core.model.attention import windowed_attention
from physis_core.model.kv import ChunkKVWindow, window_bytes
from physis_core.model.noise_schedule import FlowSchedule, draw_noise_rows
from physis_core.model.protocol import (
    KVWindow,
    ModelSpec,
    NoiseKey,
    Payload,
    StreamCondition,
    TensorSpec,
)
from physis_core.model.rope import ChunkRope
from physis_core.model.synthetic.config import OBSERVATION_SIZE, SyntheticConfig
from physis_core.types import UserError

ACTION_JOINTS = 2


def synthetic_spec(config: SyntheticConfig) -> ModelSpec:
    dtype = _dtype(config)
    streams = [TensorSpec(shape=(config.tokens, config.dim), dtype=dtype)]
    if config.extra_stream_tokens:
        streams.append(TensorSpec(shape=(config.extra_stream_tokens, config.dim), dtype=dtype))
    seen = TensorSpec(shape=(config.dim,), dtype=dtype)
    outputs = {"action": TensorSpec(shape=(config.tokens, ACTION_JOINTS), dtype=dtype)}
    if config.extra_stream_tokens:
        outputs["extra"] = streams[1]
    dim, passes, size = config.dim, config.steps + 1, dtype.itemsize
    return ModelSpec(
        name="synthetic",
        steps=config.steps,
        blocks=config.blocks,
        kv=config.kv,
        window_chunks=config.window_chunks,
        sink_chunks=config.sink_chunks,
        latent=(*streams, seen),
        hidden=(*streams, *streams, seen),
        observation={"state": TensorSpec(shape=(OBSERVATION_SIZE,))},
        outputs=outputs,
        kv_bytes=window_bytes(
            window_chunks=config.window_chunks,
            tokens=config.all_tokens,
            heads=config.heads,
            head_dim=config.dim // config.heads,
            dtype=dtype,
        ),
        block_weight_bytes=tuple(
            (4 * dim * dim + 2 * dim * width + passes * dim) * size for width in config.widths
        ),
        shared_weight_bytes=(2 * dim * dim + OBSERVATION_SIZE * dim + passes * dim) * size,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    qkv: Tensor
    out: Tensor
    up: Tensor
    down: Tensor
    step_scale: Tensor


class SyntheticModel:
    """Implements `StagedModel`. Weights of a block depend on (seed, block) alone.

    Latent: (x [B, tokens, dim], extra [B, extra_stream_tokens, dim] if any, seen [B, dim]).
    Hidden: the same token streams under way, then the latent that entered the step.
    Stream condition: {"bias": number}, added to every block's input.
    """

    def __init__(
        self,
        config: SyntheticConfig,
        blocks: Iterable[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.spec = synthetic_spec(config)
        self._device = torch.device(device)
        self._schedule = FlowSchedule(steps=config.steps)
        self._streams = 2 if config.extra_stream_tokens else 1
        owned = range(config.blocks) if blocks is None else sorted(set(blocks))
        for block in owned:
            if not 0 <= block < config.blocks:
                raise UserError("blocks", block, f"must be in 0..{config.blocks - 1}")
        self._blocks = {block: self._make_block(block) for block in owned}
        draw = self._weights(-1)
        dim, passes = config.dim, config.steps + 1
        self._in, self._flow = draw(dim, dim), draw(dim, dim)
        self._see, self._step = draw(OBSERVATION_SIZE, dim), draw(passes, dim)
        positions = torch.arange(config.all_tokens)[:, None]
        self._rope = ChunkRope(
            positions=positions,
            stride=config.all_tokens,
            pairs=(dim // config.heads // 2,),
        )

    def new_kv(self, block: int) -> ChunkKVWindow:
        config = self.config
        return ChunkKVWindow(
            window_chunks=config.window_chunks,
            sink_chunks=config.sink_chunks,
            tokens=config.all_tokens,
            heads=config.heads,
            head_dim=config.dim // config.heads,
            dtype=_dtype(config),
            device=self._device,
        )

    def condition(self, values: Mapping[str, Any]) -> StreamCondition:
        for name in values:
            if name != "bias":
                raise UserError(name, values[name], "the synthetic model knows only `bias`")
        bias = values.get("bias", 0.0)
        if not isinstance(bias, (int, float)) or not math.isfinite(bias):
            raise UserError("bias", bias, "must be a finite number")
        return {"bias": torch.tensor(float(bias), dtype=_dtype(self.config)).to(self._device)}

    def inject(self, observation: Mapping[str, Tensor], noise: Sequence[NoiseKey]) -> Payload:
        streams = []
        for part, spec in enumerate(self.spec.latent[: self._streams]):
            like = torch.empty(len(noise), *spec.shape, dtype=spec.dtype, device=self._device)
            streams.append(draw_noise_rows(noise, [0] * len(noise), like, part))
        return (*streams, self._seen(observation))

    def refresh(self, latent: Payload, observation: Mapping[str, Tensor]) -> Payload:
        return (*latent[:-1], self._seen(observation))

    def embed(self, latent: Payload, step: Sequence[int]) -> Payload:
        shift = (self._step[list(step)] + latent[-1]).unsqueeze(1)
        return (*(x @ self._in + shift for x in latent[:-1]), *latent)

    def block(
        self,
        block: int,
        hidden: Payload,
        step: Sequence[int],
        kv: Sequence[KVWindow],
        condition: Sequence[StreamCondition],
        write: Sequence[bool],
    ) -> Payload:
        weights = self._blocks[block]
        config = self.config
        bias = torch.stack([c["bias"] for c in condition]).view(-1, 1, 1)
        h = torch.cat(hidden[: self._streams], dim=1) + bias
        normal = functional.rms_norm(h, (config.dim,)) * weights.step_scale[list(step)].unsqueeze(1)
        qkv = (normal @ weights.qkv).view(*h.shape[:2], 3, config.heads, -1)
        q, k, v = qkv.unbind(2)
        attended = windowed_attention(q, k, v, kv, write, self._rope)
        h = h + attended.flatten(2) @ weights.out
        h = h + functional.silu(functional.rms_norm(h, (config.dim,)) @ weights.up) @ weights.down
        sizes = [config.tokens, config.extra_stream_tokens][: self._streams]
        return (*torch.split(h, sizes, dim=1), *hidden[self._streams :])

    def head(self, hidden: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        n = self._streams
        after = [d + 1 for d in step]
        latent = []
        for part, (h, x) in enumerate(zip(hidden[:n], hidden[n : 2 * n], strict=True)):
            flow = functional.rms_norm(h, (self.config.dim,)) @ self._flow
            clean = self._schedule.clean_from_flow(x, flow, step)
            fresh = draw_noise_rows(noise, after, x, part)
            latent.append(self._schedule.next_input(clean, fresh, step).to(x.dtype))
        return (*latent, hidden[-1])

    def renoise(self, clean: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        noisy = [
            self._schedule.renoise(x, draw_noise_rows(noise, step, x, part), step).to(x.dtype)
            for part, x in enumerate(clean[: self._streams])
        ]
        return (*noisy, *clean[self._streams :])

    def finish(self, latent: Payload, kv: Sequence[KVWindow]) -> Mapping[str, Tensor]:
        outputs = {"action": latent[0][..., :ACTION_JOINTS]}
        if self._streams == 2:
            outputs["extra"] = latent[1]
        return outputs

    def _seen(self, observation: Mapping[str, Tensor]) -> Tensor:
        state = observation["state"].to(device=self._device, dtype=_dtype(self.config))
        return state @ self._see

    def _make_block(self, block: int) -> _Block:
        draw = self._weights(block)
        dim, width = self.config.dim, self.config.widths[block]
        return _Block(
            qkv=draw(dim, 3 * dim),
            out=draw(dim, dim),
            up=draw(dim, width),
            down=draw(width, dim),
            step_scale=1.0 + 0.2 * draw(self.config.steps + 1, dim),
        )

    def _weights(self, part: int) -> _Draw:
        seed = (self.config.seed * 1_000_003 + part + 1) % 2**63
        return _Draw(torch.Generator().manual_seed(seed), _dtype(self.config), self._device)


def _dtype(config: SyntheticConfig) -> torch.dtype:
    return torch.float64 if config.dtype == "float64" else torch.float32


class _Draw:
    """Random matrices, scaled so that a layer's output is about as large as its input."""

    def __init__(
        self, generator: torch.Generator, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._generator, self._dtype, self._device = generator, dtype, device

    def __call__(self, rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, generator=self._generator, dtype=torch.float64)
        return (drawn / math.sqrt(rows)).to(device=self._device, dtype=self._dtype)
