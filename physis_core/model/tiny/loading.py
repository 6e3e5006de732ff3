"""Policy, world model and autoencoder: from a file, or with seeded random weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from physis_core.model.config import build_config
from physis_core.model.header import read_header
from physis_core.model.shapes import shapes_only
from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.checkpoint import read_weights
from physis_core.model.tiny.config import (
    AutoencoderConfig,
    TinyConfig,
    WorldConfig,
    configured,
    read_config,
)
from physis_core.model.tiny.model import TinyModel
from physis_core.model.tiny.network import TinyNetwork
from physis_core.model.tiny.world_model import WorldModel
from physis_core.model.tiny.world_network import WorldNetwork
from physis_core.types import UserError

RANDOM_SEED = 0
Model = TypeVar("Model", TinyModel, WorldModel)


def load_tiny(
    config: Mapping[str, Any],
    checkpoint: str | None,
    blocks: Iterable[int] | None,
    device: torch.device | str,
) -> TinyModel:
    """Raises UserError where configuration or checkpoint does not fit."""
    whole = configured(TinyConfig, config, checkpoint)
    return _with_weights(TinyModel(whole, _owned(whole, blocks), device), checkpoint, RANDOM_SEED)


def load_world(
    config: Mapping[str, Any],
    checkpoint: str | None,
    blocks: Iterable[int] | None,
    device: torch.device | str,
) -> WorldModel:
    """Raises UserError where configuration or checkpoint does not fit."""
    whole = configured(WorldConfig, config, checkpoint)
    return _with_weights(WorldModel(whole, _owned(whole, blocks), device), checkpoint, RANDOM_SEED)


def load_actions(checkpoint: Path | str) -> TinyModel:
    """A whole policy for its actions alone: pictures, if it has any, stay latents."""
    draws = read_config(checkpoint, TinyConfig).draws
    return load_tiny({"decode": False} if draws else {}, str(checkpoint), None, "cpu")


def random_tiny(
    config: TinyConfig,
    owned: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    seed: int = RANDOM_SEED,
) -> TinyModel:
    """The same weights for a block whichever others are owned beside it."""
    return _with_weights(TinyModel(config, owned, device), None, seed)


def random_world(
    config: WorldConfig,
    owned: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    seed: int = RANDOM_SEED,
) -> WorldModel:
    """The same weights for a block whichever others are owned beside it."""
    return _with_weights(WorldModel(config, owned, device), None, seed)


def load_frame_coder(checkpoint: Path | str) -> Autoencoder:
    """The autoencoder of a world model's file, ready to encode a first frame."""
    config = read_config(checkpoint, WorldConfig)
    with shapes_only():
        whole = WorldNetwork(config).state_dict()
    prefix = "autoencoder."
    held = [name for name in whole if name.startswith(prefix)]
    weights = read_weights(checkpoint, whole, held)
    network = Autoencoder(config.autoencoder)
    network.load_state_dict({name.removeprefix(prefix): weights[name] for name in held})
    return network.eval().requires_grad_(False)


def load_autoencoder(path: Path | str) -> Autoencoder:
    """From a file of its own, as training needs it. Raises UserError where it does not fit."""
    config = build_config(AutoencoderConfig, read_header(path, AutoencoderConfig.FORMAT)["config"])
    with shapes_only():
        wanted = Autoencoder(config).state_dict()
    network = Autoencoder(config)
    network.load_state_dict(read_weights(path, wanted))
    network.eval().requires_grad_(False)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _owned(config: TinyConfig | WorldConfig, blocks: Iterable[int] | None) -> tuple[int, ...]:
    owned = tuple(range(config.blocks)) if blocks is None else tuple(blocks)
    for block in owned:
        if not 0 <= block < config.blocks:
            raise UserError("block", block, f"the model has blocks 0..{config.blocks - 1}")
    return owned


def _with_weights(model: Model, checkpoint: str | None, seed: int) -> Model:
    held = model.network.state_dict()
    if checkpoint is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            weights = _whole_network(model).state_dict()
    else:
        with shapes_only():
            wanted = _whole_network(model).state_dict()
        weights = read_weights(checkpoint, wanted, held)
    model.network.load_state_dict({name: weights[name] for name in held})
    return model


def _whole_network(model: TinyModel | WorldModel) -> TinyNetwork | WorldNetwork:
    if isinstance(model, TinyModel):
        return TinyNetwork(model.config)
    return WorldNetwork(model.config)
