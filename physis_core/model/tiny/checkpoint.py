"""A physis-tiny checkpoint: a `container` of a `TinyConfig`, its weights, where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from physis_core.model.loading import build_config
from physis_core.model.tiny import container
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import UserError

FORMAT = "physis-tiny/1"


def save(
    path: Path | str,
    config: TinyConfig,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Any],
) -> None:
    """Write a checkpoint: the whole file or nothing."""
    container.write(Path(path), FORMAT, config.to_json(), weights, training)


def read_config(path: Path | str) -> TinyConfig:
    """The configuration alone, without reading weights. Raises UserError as `load` does."""
    return build_config(TinyConfig, container.read_header(path, FORMAT)["config"])


def read_training(path: Path | str) -> dict[str, Any]:
    """What the checkpoint says of its training."""
    return dict(container.read_header(path, FORMAT).get("training", {}))


def load(
    path: Path | str, owned: Iterable[int] | None = None
) -> tuple[TinyConfig, dict[str, Tensor]]:
    """Configuration and float32 weights; of the blocks, only those in `owned` (None: all of them).

    Raises:
        UserError: no such file, no physis-tiny checkpoint, or a tensor that is missing, not
            expected, or of another shape than the configuration says.
    """
    config = read_config(path)
    numbers = tuple(range(config.blocks)) if owned is None else tuple(owned)
    for number in numbers:
        if not 0 <= number < config.blocks:
            raise UserError("block", number, f"{path} has blocks 0..{config.blocks - 1}")
    with torch.device("meta"):
        whole = TinyNetwork(config).state_dict()
    held = {name for name in whole if _is_held(name, numbers)}
    return config, container.read_weights(path, whole, held)


def _is_held(name: str, numbers: tuple[int, ...]) -> bool:
    if not name.startswith("blocks."):
        return True
    return int(name.split(".", 2)[1]) in numbers
