"""A world model's file, and the model made from it or with seeded random weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from physis_core.model.loading import build_config
from physis_core.model.protocol import ModelSpec
from physis_core.model.tiny import container
from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.world_config import WorldConfig
from physis_core.model.tiny.world_model import WorldModel, world_spec
from physis_core.model.tiny.world_network import WorldNetwork
from physis_core.types import UserError

FORMAT = "physis-world/1"
RANDOM_SEED = 0


def save_world(
    path: Path, config: WorldConfig, weights: Mapping[str, Tensor], training: Mapping[str, Any]
) -> None:
    container.write(path, FORMAT, config.to_json(), weights, training)


def read_world_config(path: Path | str) -> WorldConfig:
    """The configuration alone, without reading weights. Raises UserError where it does not fit."""
    return build_config(WorldConfig, container.read_header(path, FORMAT)["config"])


def load_world(
    config: Mapping[str, Any],
    checkpoint: str | None,
    blocks: Iterable[int] | None,
    device: torch.device | str,
) -> WorldModel:
    """Raises UserError where configuration or checkpoint does not fit."""
    owned = None if blocks is None else tuple(blocks)
    if checkpoint is None:
        return random_world(build_config(WorldConfig, config), owned, device)
    model = WorldModel(_merged(config, checkpoint), owned, device)
    with torch.device("meta"):
        whole = WorldNetwork(model.config).state_dict()
    weights = container.read_weights(checkpoint, whole)
    model.network.load_state_dict({name: weights[name] for name in model.network.state_dict()})
    return model


def load_world_spec(config: Mapping[str, Any], checkpoint: str | None) -> ModelSpec:
    """The specification without weights in memory."""
    if checkpoint is None:
        return world_spec(build_config(WorldConfig, config))
    return world_spec(_merged(config, checkpoint))


def load_frame_coder(checkpoint: Path | str) -> Autoencoder:
    """The autoencoder of a world model's file, ready to encode a first frame."""
    config = read_world_config(checkpoint)
    with torch.device("meta"):
        whole = WorldNetwork(config).state_dict()
    weights = container.read_weights(checkpoint, whole)
    prefix = "autoencoder."
    network = Autoencoder(config.autoencoder)
    network.load_state_dict(
        {n.removeprefix(prefix): x for n, x in weights.items() if n.startswith(prefix)}
    )
    return network.eval().requires_grad_(False)


def random_world(
    config: WorldConfig,
    owned: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    seed: int = RANDOM_SEED,
) -> WorldModel:
    """The same weights for a block whichever others are owned beside it."""
    model = WorldModel(config, owned, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = WorldNetwork(config).state_dict()
    model.network.load_state_dict({name: whole[name] for name in model.network.state_dict()})
    return model


def _merged(config: Mapping[str, Any], checkpoint: str) -> WorldConfig:
    read = read_world_config(checkpoint)
    for name, value in config.items():
        if name != "decode":
            raise UserError(
                f"model.config.{name}", value, f"{checkpoint} fixes its own configuration"
            )
        if not isinstance(value, bool):
            raise UserError(f"model.config.{name}", value, "must be of type bool")
        # The one field that is no property of the weights.
        read = replace(read, decode=value)
    return read
