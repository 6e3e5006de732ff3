"""The block stages and the spec that policy and world model share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from physis_core.model.attention import windowed_attention
from physis_core.model.kv import ChunkKVWindow, window_bytes
from physis_core.model.noise_schedule import schedule_of
from physis_core.model.protocol import (
    KVWindow,
    ModelSpec,
    Payload,
    StreamCondition,
    TensorSpec,
)
from physis_core.model.tiny.network import TinyNetwork
from physis_core.model.tiny.world_network import WorldNetwork

Network = TypeVar("Network", TinyNetwork, WorldNetwork)


class StagedBlocks(Generic[Network]):
    """The block stages of a `StagedModel`. A hidden payload's first tensor is the tokens."""

    def __init__(self, network: Network, spec: ModelSpec, device: torch.device | str) -> None:
        self.network: Network = network.to(device).eval().requires_grad_(False)
        self.spec = spec
        self._device = torch.device(device)
        self._schedule = schedule_of(network.config)
        self._modulation: dict[int, Tensor] = {}
        self._levels: Tensor | None = None

    def new_kv(self, block: int) -> KVWindow:
        config = self.network.config
        return ChunkKVWindow(
            window_chunks=config.window_chunks,
            sink_chunks=config.sink_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
            device=self._device,
        )

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

    def _level_table(self) -> Tensor:
        """Encoded noise levels of steps 0 .. D, [D + 1, dim].

        Made at first use, when the weights are in place: there are only D + 1 of them for ever, and
        computing them at every stage costs a third of the stage.
        """
        if self._levels is None:
            levels = [self._schedule.level(d) for d in range(self._schedule.steps + 1)]
            self._levels = self.network.level(torch.tensor(levels, device=self._device))
        return self._levels


def staged_spec(
    whole: TinyNetwork | WorldNetwork,
    *,
    name: str,
    latent: tuple[TensorSpec, ...],
    carried: tuple[TensorSpec, ...],
    observation: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec],
) -> ModelSpec:
    """What the engine must know of a model with these layers, which may be on `meta`.

    Args:
        carried: what goes from block to block beside the tokens.
    """
    config = whole.config
    block_bytes = tuple(_parameter_bytes(whole.owned_block(n)) for n in range(config.blocks))
    return ModelSpec(
        name=name,
        steps=config.steps,
        blocks=config.blocks,
        kv=config.kv,
        window_chunks=config.window_chunks,
        sink_chunks=config.sink_chunks,
        latent=latent,
        hidden=(TensorSpec(shape=(config.tokens, config.dim)), *carried),
        observation=observation,
        outputs=outputs,
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
