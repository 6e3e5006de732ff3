"""A physis-tiny checkpoint: one safetensors file whose metadata says all that its numbers mean.

Under the metadata key `physis` lies a JSON object {"format", "config", "training"}: the
`TinyConfig`, and where the weights come from. They are stored in half precision, and computed with
in single.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from physis_core.model.loading import build_config
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import UserError

METADATA_KEY = "physis"
FORMAT = "physis-tiny/1"


def save(
    path: Path | str,
    config: TinyConfig,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Any],
) -> None:
    """Write a checkpoint: the whole file or nothing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"format": FORMAT, "config": config.to_json(), "training": dict(training)}
    stored = {name: x.detach().to("cpu", torch.float16).contiguous() for name, x in weights.items()}
    partial = path.with_name(path.name + ".partial")
    save_file(stored, partial, metadata={METADATA_KEY: json.dumps(header, sort_keys=True)})
    partial.replace(path)


def read_config(path: Path | str) -> TinyConfig:
    """The configuration alone, without reading weights. Raises UserError as `load` does."""
    return build_config(TinyConfig, _header(path)["config"])


def read_training(path: Path | str) -> dict[str, Any]:
    """What the checkpoint says of its training."""
    return dict(_header(path).get("training", {}))


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
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        for name in sorted(names - whole.keys()):
            raise UserError(name, str(path), "a tensor that this configuration does not have")
        weights = {}
        for name, wanted in whole.items():
            if name not in names:
                raise UserError(name, str(path), "this tensor is missing from the checkpoint")
            shape = tuple(file.get_slice(name).get_shape())
            if shape != tuple(wanted.shape):
                needed = tuple(wanted.shape)
                raise UserError(name, shape, f"the configuration in {path} needs {needed}")
            if _is_held(name, numbers):
                weights[name] = file.get_tensor(name).float()
    return config, weights


def _is_held(name: str, numbers: tuple[int, ...]) -> bool:
    if not name.startswith("blocks."):
        return True
    return int(name.split(".", 2)[1]) in numbers


def _header(path: Path | str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise UserError("checkpoint", str(path), "no such file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise UserError("checkpoint", str(path), f"not a safetensors file ({error})") from error
    if METADATA_KEY not in metadata:
        raise UserError("checkpoint", str(path), f"has no metadata under {METADATA_KEY!r}")
    try:
        header = json.loads(metadata[METADATA_KEY])
    except json.JSONDecodeError as error:
        raise UserError("checkpoint", str(path), f"its metadata is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise UserError("checkpoint", str(path), f"its metadata {METADATA_KEY!r} is no JSON object")
    found = header.get("format")
    if found != FORMAT:
        raise UserError("format", found, f"{path} is not of format {FORMAT}")
    if not isinstance(header.get("config"), dict):
        raise UserError("config", header.get("config"), f"{path} holds no configuration")
    return header
