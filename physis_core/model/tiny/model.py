"""physis-tiny as a staged model. Payloads:

latent = (noisy part, ..., joints [J], condition tokens [C, dim])
hidden = (tokens [N, dim], noisy part, ..., joints [J], condition tokens [C, dim])

Outputs: `action` [K, J] rad; where the model denoises pictures of the chunk's future as well, those
as `frames` uint8 [F, H, W, 3], or as latents under `frame`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from physis_core.model.description import ACTION, FRAMES, IMAGE, JOINT_POSITIONS, LOOKAHEAD
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
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_core.model.tiny.staged import StagedBlocks, staged_spec
from physis_core.types import UserError


class TinyModel(StagedBlocks[TinyNetwork]):
    """Implements `StagedModel`. Holds the blocks `owned` alone, and the small shared layers."""

    def __init__(
        self,
        config: TinyConfig,
        owned: Iterable[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(TinyNetwork(config, owned), tiny_spec(config), device)
        self.config = config
        self._parts = len(config.parts)

    def condition(self, values: Mapping[str, Any]) -> StreamCondition:
        """physis-tiny takes everything from the observation."""
        for name, value in values.items():
            raise UserError(name, value, "physis-tiny has no such stream condition")
        return {}

    def inject(self, observation: Mapping[str, Tensor], noise: Sequence[NoiseKey]) -> Payload:
        joints, condition = self._encode(observation)
        noisy = tuple(
            torch.stack(
                [draw_noise(key, 0, (part.tokens, part.channels), number) for key in noise]
            ).to(self._device)
            for number, part in enumerate(self.config.parts)
        )
        return (*noisy, joints, condition)

    def refresh(self, latent: Payload, observation: Mapping[str, Tensor]) -> Payload:
        joints, condition = self._encode(observation)
        return (*latent[: self._parts], joints, condition)

    def embed(self, latent: Payload, step: Sequence[int]) -> Payload:
        return (self.network.embed(latent[: self._parts], latent[-1]), *latent)

    def head(self, hidden: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        tokens, joints, condition = hidden[0], hidden[-2], hidden[-1]
        clean = self.network.predict_clean(tokens, self._level_table()[list(step)], joints)
        following = [d + 1 for d in step]
        noisy = tuple(
            self._schedule.next_input(x, draw_noise_rows(noise, following, x, number), step)
            for number, x in enumerate(clean)
        )
        return (*noisy, joints, condition)

    def renoise(self, clean: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        noisy = tuple(
            self._schedule.renoise(x, draw_noise_rows(noise, step, x, number), step)
            for number, x in enumerate(clean[: self._parts])
        )
        return (*noisy, *clean[self._parts :])

    def finish(self, latent: Payload, kv: Sequence[KVWindow]) -> Mapping[str, Tensor]:
        network = self.network
        outputs = {
            part.name: x for part, x in zip(self.config.parts, latent[: self._parts], strict=True)
        }
        outputs[ACTION] = outputs[ACTION] * network.position_std + network.position_mean
        if self.config.draws:
            latents = outputs.pop("frame")
            rows, pictures = latents.shape[0], len(self.config.frame_times_s)
            drawn = network.autoencoder.decode(
                latents.reshape(rows * pictures, -1, latents.shape[-1])
            )
            outputs[FRAMES] = drawn.reshape(rows, pictures, *drawn.shape[1:])
        return outputs

    def _encode(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.network.encode(
            {name: observation[name].to(self._device) for name in self.spec.observation}
        )


def tiny_spec(config: TinyConfig) -> ModelSpec:
    """What the engine must know of a physis-tiny of this configuration."""
    with shapes_only():
        whole = TinyNetwork(config)
    parts = tuple(TensorSpec(shape=(part.tokens, part.channels)) for part in config.parts)
    carried = (
        *parts,
        TensorSpec(shape=(config.joints,)),
        TensorSpec(shape=(config.condition_tokens, config.dim)),
    )
    height, width = config.image_size
    outputs = {part.name: TensorSpec(shape=(part.tokens, part.channels)) for part in config.parts}
    if config.draws:
        del outputs["frame"]
        shape = (len(config.frame_times_s), *config.frame_size, 3)
        outputs[FRAMES] = TensorSpec(shape=shape, dtype=torch.uint8)
    return staged_spec(
        whole,
        name="physis-tiny",
        latent=carried,
        carried=carried,
        observation={
            IMAGE: TensorSpec(
                shape=(len(config.camera_names), height, width, 3), dtype=torch.uint8
            ),
            JOINT_POSITIONS: TensorSpec(shape=(config.joints,)),
            LOOKAHEAD: TensorSpec(shape=(1,)),
        },
        outputs=outputs,
    )
