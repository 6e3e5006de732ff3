"""One safetensors file whose metadata says all that its numbers mean, for each kind of network.

Weights are stored in half precision, and computed with in single.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from physis_core.model.header import METADATA_KEY, read_header
from physis_core.model.shapes import shapes_only
from physis_core.model.tiny.config import (
    AutoencoderConfig,
    TinyConfig,
    TransformerConfig,
    read_config,
)
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import UserError


def save(
    path: Path | str,
    config: TransformerConfig | AutoencoderConfig,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Any],
) -> None:
    """Write the whole file or nothing. Whole numbers keep their type."""
    write(Path(path), config.FORMAT, asdict(config), weights, training)


def write(
    path: Path,
    kind: str,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    training: Mapping[str, Any],
) -> None:
    """As `save`, for a network that has no configuration here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"format": kind, "config": dict(config), "training": dict(training)}
    stored = {}
    for name, x in weights.items():
        kept = x.detach().to("cpu")
        stored[name] = (kept.half() if kept.is_floating_point() else kept).contiguous()
    partial = path.with_name(path.name + ".partial")
    save_file(stored, partial, metadata={METADATA_KEY: json.dumps(header, sort_keys=True)})
    partial.replace(path)


def read_training(path: Path | str) -> dict[str, Any]:
    """What a policy's file says of its training."""
    return dict(read_header(path, TinyConfig.FORMAT).get("training", {}))


def load(
    path: Path | str, owned: Iterable[int] | None = None
) -> tuple[TinyConfig, dict[str, Tensor]]:
    """A policy's configuration and weights; of the blocks, only those in `owned` (None: all).

    Raises:
        UserError: no such file, of another format, or a tensor that is missing, not expected, or
            of another shape than the configuration says.
    """
    config = read_config(path, TinyConfig)
    numbers = tuple(range(config.blocks)) if owned is None else tuple(owned)
    for number in numbers:
        if not 0 <= number < config.blocks:
            raise UserError("block", number, f"{path} has blocks 0..{config.blocks - 1}")
    with shapes_only():
        whole = TinyNetwork(config).state_dict()
        part = TinyNetwork(config, numbers).state_dict()
    return config, read_weights(path, whole, part)


def read_weights(
    path: Path | str, wanted: Mapping[str, Tensor], held: Container[str] | None = None
) -> dict[str, Tensor]:
    """Tensors of exactly these names and shapes; those of `wanted` may be on `meta`.

    All are checked; where `held` is given, only the tensors that it names are read.

    Raises:
        UserError: a tensor is missing, of another shape, or not expected.
    """
    weights = {}
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name in sorted(names - wanted.keys()):
            raise UserError(name, str(path), "a tensor that this configuration does not have")
        for name, like in wanted.items():
            if name not in names:
                raise UserError(name, str(path), "this tensor is missing from the checkpoint")
            shape = tuple(file.get_slice(name).get_shape())
            if shape != tuple(like.shape):
                needed = tuple(like.shape)
                raise UserError(name, shape, f"the configuration in {path} needs {needed}")
            if held is not None and name not in held:
                continue
            read = file.get_tensor(name)
            weights[name] = read.float() if read.is_floating_point() else read
    return weights
