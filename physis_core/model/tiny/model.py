"""physis-tiny as a staged model. Payloads:

latent = (noisy part, ..., joints [J], condition tokens [C, dim])
hidden = (tokens [N, dim], noisy part, ..., joints [J], condition tokens [C, dim])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import UserError


class TinyModel:
    """Implements `StagedModel`. Holds the blocks `owned` alone, and the small shared layers."""

    def __init__(
        self,
        config: TinyConfig,
        owned: Iterable[int] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.network = TinyNetwork(config, owned).to(device).eval().requires_grad_(False)
        self.spec = tiny_spec(config)
        self._device = torch.device(device)
        self._schedule = config.schedule
        self._parts = len(config.parts)
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
        tokens = hidden[0]
        if block not in self._modulation:
            self._modulation[block] = layers.modulation(self._level_table())
        modulation = layers.split_modulation(self._modulation[block][list(step)])
        q, k, v = layers.attention_input(tokens, modulation)
        attended = windowed_attention(q, k, v, kv, write, self.network.rope)
        return (layers.after_attention(tokens, attended, modulation), *hidden[1:])

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

    def finish(self, latent: Payload) -> Mapping[str, Tensor]:
        network = self.network
        outputs = {
            part.name: x for part, x in zip(self.config.parts, latent[: self._parts], strict=True)
        }
        outputs["action"] = outputs["action"] * network.position_std + network.position_mean
        return outputs

    def _encode(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.network.encode(
            {name: observation[name].to(self._device) for name in self.spec.observation}
        )

    def _level_table(self) -> Tensor:
        """Encoded noise levels of steps 0 .. D, [D + 1, dim].

        Made at first use, when the weights are in place: there are only D + 1 of them for ever, and
        computing them at every stage costs a third of the stage.
        """
        if self._levels is None:
            levels = [self._schedule.level(d) for d in range(self.config.steps + 1)]
            self._levels = self.network.level(torch.tensor(levels, device=self._device))
        return self._levels


def tiny_spec(config: TinyConfig) -> ModelSpec:
    """What the engine must know of a physis-tiny of this configuration."""
    with torch.device("meta"):
        whole = TinyNetwork(config)
    parts = tuple(TensorSpec(shape=(part.tokens, part.channels)) for part in config.parts)
    carried = (
        *parts,
        TensorSpec(shape=(config.joints,)),
        TensorSpec(shape=(config.condition_tokens, config.dim)),
    )
    height, width = config.image_size
    block_bytes = tuple(_parameter_bytes(whole.owned_block(n)) for n in range(config.blocks))
    return ModelSpec(
        name="physis-tiny",
        steps=config.steps,
        blocks=config.blocks,
        kv=config.kv,
        window_chunks=config.window_chunks,
        sink_chunks=config.sink_chunks,
        latent=carried,
        hidden=(TensorSpec(shape=(config.tokens, config.dim)), *carried),
        observation={
            "image": TensorSpec(
                shape=(len(config.camera_names), height, width, 3), dtype=torch.uint8
            ),
            "joint_positions": TensorSpec(shape=(config.joints,)),
            "lookahead_s": TensorSpec(shape=(1,)),
        },
        outputs={
            part.name: TensorSpec(shape=(part.tokens, part.channels)) for part in config.parts
        },
        kv_bytes=window_bytes(
            window_chunks=config.window_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
        ),
        block_weight_bytes=block_bytes,
        shared_weight_bytes=_parameter_bytes(whole) - sum(block_bytes),
    )


def _parameter_bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())
