"""physis-tiny from a checkpoint, or with seeded random weights from a configuration alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from physis_core.model.loading import build_config
from physis_core.model.protocol import ModelSpec
from physis_core.model.tiny import checkpoint as checkpoints
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.model import TinyModel, tiny_spec
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import UserError

RANDOM_SEED = 0


def load_tiny(
    config: Mapping[str, Any],
    checkpoint: str | None,
    blocks: Iterable[int] | None,
    device: torch.device | str,
) -> TinyModel:
    """Raises UserError where configuration or checkpoint does not fit."""
    owned = None if blocks is None else tuple(blocks)
    if checkpoint is None:
        return random_tiny(build_config(TinyConfig, config), owned, device)
    read, weights = checkpoints.load(checkpoint, owned)
    model = TinyModel(_merged(read, config, checkpoint), owned, device)
    model.network.load_state_dict(weights)
    return model


def load_actions(checkpoint: Path | str) -> TinyModel:
    """A whole policy whose pictures, if it has any, stay latents: for who plays actions alone."""
    draws = checkpoints.read_config(checkpoint).draws
    return load_tiny({"decode": False} if draws else {}, str(checkpoint), None, "cpu")


def load_tiny_spec(config: Mapping[str, Any], checkpoint: str | None) -> ModelSpec:
    """The specification without weights in memory."""
    if checkpoint is None:
        return tiny_spec(build_config(TinyConfig, config))
    return tiny_spec(_merged(checkpoints.read_config(checkpoint), config, checkpoint))


def random_tiny(
    config: TinyConfig,
    owned: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
    seed: int = RANDOM_SEED,
) -> TinyModel:
    """The same weights for a block whichever others are owned beside it."""
    model = TinyModel(config, owned, device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = TinyNetwork(config).state_dict()
    held = model.network.state_dict()
    model.network.load_state_dict({name: whole[name] for name in held})
    return model


def _merged(read: TinyConfig, config: Mapping[str, Any], checkpoint: str) -> TinyConfig:
    for name, value in config.items():
        field = f"model.config.{name}"
        if name != "decode":
            raise UserError(field, value, f"{checkpoint} fixes its own configuration")
        if not isinstance(value, bool):
            raise UserError(field, value, "must be of type bool")
        if not read.frame_times_s:
            raise UserError(field, value, f"{checkpoint} draws no pictures")
        # The one field that is no property of the weights.
        read = replace(read, decode=value)
    return read
