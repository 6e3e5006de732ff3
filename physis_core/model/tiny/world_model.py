"""The action-conditioned world model as a staged model. Payloads:

latent = (noisy frames [tokens, channels], actions [frames, J] rad, first frame [tokens, channels])
hidden = (tokens [N, dim], actions, first frame)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.noise_schedule import draw_noise, draw_noise_rows
from physis_core.model.protocol import (
    KVWindow,
    ModelSpec,
    NoiseKey,
    Payload,
    StreamCondition,
    TensorSpec,
)
from physis_core.model.shapes import shapes_only
from physis_core.model.tiny.config import WorldConfig
from physis_core.model.tiny.staged import StagedBlocks, staged_spec
from physis_core.model.tiny.world_network import WorldNetwork
from physis_core.types import UserError

LATENTS = "latents"
FIRST = "first_latents"


class WorldModel(StagedBlocks[WorldNetwork]):
    """Implements `StagedModel`. Holds the blocks `owned` alone, and the small shared layers."""

    def __init__(
        self,
        config: WorldConfig,
        owned: Iterable[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(WorldNetwork(config, owned), world_spec(config), device)
        self.config = config

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

    def head(self, hidden: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        clean = self.network.predict_clean(hidden[0], self._level_table()[list(step)])
        fresh = draw_noise_rows(noise, [d + 1 for d in step], clean)
        return (self._schedule.next_input(clean, fresh, step), *hidden[1:])

    def renoise(self, clean: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        fresh = draw_noise_rows(noise, step, clean[0])
        return (self._schedule.renoise(clean[0], fresh, step), *clean[1:])

    def finish(self, latent: Payload, kv: Sequence[KVWindow]) -> Mapping[str, Tensor]:
        if not self.config.decode:
            return {LATENTS: latent[0]}
        rows = latent[0].shape[0]
        latents = latent[0].reshape(rows * self.config.frames, self.config.frame_tokens, -1)
        frames = self.network.autoencoder.decode(latents)
        return {FRAMES: frames.reshape(rows, self.config.frames, *frames.shape[1:])}

    def _given(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return observation[COMMANDS].to(self._device), observation[FIRST].to(self._device)


def world_spec(config: WorldConfig) -> ModelSpec:
    """What the engine must know of a world model of this configuration."""
    with shapes_only():
        whole = WorldNetwork(config)
    noisy = TensorSpec(shape=(config.denoised_tokens, config.channels))
    actions = TensorSpec(shape=(config.frames, config.joints))
    first = TensorSpec(shape=(config.frame_tokens, config.channels))
    height, width = config.frame_size
    pictures = TensorSpec(shape=(config.frames, height, width, 3), dtype=torch.uint8)
    return staged_spec(
        whole,
        name="physis-tiny-world",
        latent=(noisy, actions, first),
        carried=(actions, first),
        observation={COMMANDS: actions, FIRST: first},
        outputs={FRAMES: pictures} if config.decode else {LATENTS: noisy},
    )
