"""The action-conditioned world model as a staged model. Payloads:

latent = (noisy frames [tokens, channels], actions [frames, J] rad, first frame [tokens, channels])
hidden = (tokens [N, dim], actions, first frame)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from physis_core.model.attention import windowed_attention
from physis_core.model.kv import ChunkKVWindow, window_bytes
from physis_core.model.protocol import (
    KVWindow,
    ModelSpec,
    NoiseKey,
    Payload,
    StreamCondition,
    TensorSpec,
)
from physis_core.model.schedule import draw_noise, draw_noise_rows
from physis_core.model.tiny.world_config import WorldConfig
from physis_core.model.tiny.world_network import WorldNetwork
from physis_core.types import UserError

FRAMES = "frames"
LATENTS = "latents"
ACTIONS = "actions"
FIRST = "first_latents"


class WorldModel:
    """Implements `StagedModel`. Holds the blocks `owned` alone, and the small shared layers."""

    def __init__(
        self,
        config: WorldConfig,
        owned: Iterable[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.network = WorldNetwork(config, owned).to(device).eval().requires_grad_(False)
        self.spec = world_spec(config)
        self._device = torch.device(device)
        self._schedule = config.schedule
        self._modulation: dict[int, Tensor] = {}
        self._levels: Tensor | None = None

    def new_kv(self, block: int) -> KVWindow:
        config = self.config
        return ChunkKVWindow(
            window_chunks=config.window_chunks,
            sink_chunks=config.sink_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
            device=self._device,
        )

    def condition(self, values: Mapping[str, Any]) -> StreamCondition:
        """The first frame and the actions come with the observation."""
        for name, value in values.items():
            raise UserError(name, value, "a world model has no such stream condition")
        return {}

    def inject(self, observation: Mapping[str, Tensor], noise: Sequence[NoiseKey]) -> Payload:
        shape = (self.config.denoised_tokens, self.config.channels)
        noisy = torch.stack([draw_noise(key, 0, shape) for key in noise]).to(self._device)
        return (noisy, *self._given(observation))

    def refresh(self, latent: Payload, observation: Mapping[str, Tensor]) -> Payload:
        return (latent[0], *self._given(observation))

    def embed(self, latent: Payload, step: Sequence[int]) -> Payload:
        noisy, actions, first = latent
        return (self.network.embed(noisy, actions, first), actions, first)

    def block(
        self,
        block: int,
        hidden: Payload,
        step: Sequence[int],
        kv: Sequence[KVWindow],
        condition: Sequence[StreamCondition],
        write: Sequence[bool],
    ) -> Payload:
        layers = self.network.owned_block(block)
        if block not in self._modulation:
            self._modulation[block] = layers.modulation(self._level_table())
        modulation = layers.split_modulation(self._modulation[block][list(step)])
        q, k, v = layers.attention_input(hidden[0], modulation)
        attended = windowed_attention(q, k, v, kv, write, self.network.rope)
        return (layers.after_attention(hidden[0], attended, modulation), *hidden[1:])

    def head(self, hidden: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        clean = self.network.predict_clean(hidden[0], self._level_table()[list(step)])
        fresh = draw_noise_rows(noise, [d + 1 for d in step], clean)
        return (self._schedule.next_input(clean, fresh, step), *hidden[1:])

    def renoise(self, clean: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        fresh = draw_noise_rows(noise, step, clean[0])
        return (self._schedule.renoise(clean[0], fresh, step), *clean[1:])

    def finish(self, latent: Payload) -> Mapping[str, Tensor]:
        if not self.config.decode:
            return {LATENTS: latent[0]}
        rows = latent[0].shape[0]
        latents = latent[0].reshape(rows * self.config.frames, self.config.frame_tokens, -1)
        frames = self.network.autoencoder.decode(latents)
        return {FRAMES: frames.reshape(rows, self.config.frames, *frames.shape[1:])}

    def _given(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return observation[ACTIONS].to(self._device), observation[FIRST].to(self._device)

    def _level_table(self) -> Tensor:
        """Encoded noise levels of steps 0 .. D, [D + 1, dim]; made when the weights are there."""
        if self._levels is None:
            levels = [self._schedule.level(d) for d in range(self.config.steps + 1)]
            self._levels = self.network.level(torch.tensor(levels, device=self._device))
        return self._levels


def world_spec(config: WorldConfig) -> ModelSpec:
    """What the engine must know of a world model of this configuration."""
    with torch.device("meta"):
        whole = WorldNetwork(config)
    noisy = TensorSpec(shape=(config.denoised_tokens, config.channels))
    actions = TensorSpec(shape=(config.frames, config.joints))
    first = TensorSpec(shape=(config.frame_tokens, config.channels))
    height, width = config.frame_size
    block_bytes = tuple(_bytes(whole.owned_block(n)) for n in range(config.blocks))
    pictures = TensorSpec(shape=(config.frames, height, width, 3), dtype=torch.uint8)
    return ModelSpec(
        name="physis-tiny-world",
        steps=config.steps,
        blocks=config.blocks,
        kv=config.kv,
        window_chunks=config.window_chunks,
        sink_chunks=config.sink_chunks,
        latent=(noisy, actions, first),
        hidden=(TensorSpec(shape=(config.tokens, config.dim)), actions, first),
        observation={ACTIONS: actions, FIRST: first},
        outputs={FRAMES: pictures} if config.decode else {LATENTS: noisy},
        kv_bytes=window_bytes(
            window_chunks=config.window_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
        ),
        block_weight_bytes=block_bytes,
        shared_weight_bytes=_bytes(whole) - sum(block_bytes),
    )


def _bytes(module: torch.nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())
