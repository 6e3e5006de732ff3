"""One safetensors file whose metadata says all that its numbers mean, for several kinds of weights.

Under the metadata key `physis` lies a JSON object {"format", "config", "training"}. Weights are
stored in half precision, and computed with in single.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from physis_core.types import UserError

METADATA_KEY = "physis"


def write(
    path: Path,
    kind: str,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    training: Mapping[str, Any],
) -> None:
    """The whole file or nothing. Whole numbers keep their type."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"format": kind, "config": dict(config), "training": dict(training)}
    stored = {}
    for name, x in weights.items():
        kept = x.detach().to("cpu")
        stored[name] = (kept.half() if kept.is_floating_point() else kept).contiguous()
    partial = path.with_name(path.name + ".partial")
    save_file(stored, partial, metadata={METADATA_KEY: json.dumps(header, sort_keys=True)})
    partial.replace(path)


def format_of(path: Path | str) -> str | None:
    """What the file says it is; None where it says nothing. Raises UserError: no such file."""
    found = _metadata(path).get("format")
    return found if isinstance(found, str) else None


def read_header(path: Path | str, kind: str) -> dict[str, Any]:
    """Raises UserError where the file is missing, or not of this format."""
    header = _metadata(path)
    if header.get("format") != kind:
        raise UserError("checkpoint", str(path), f"is of format {header.get('format')}, not {kind}")
    if not isinstance(header.get("config"), dict):
        raise UserError("config", header.get("config"), f"{path} holds no configuration")
    return header


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
            weights[name] = read.to(torch.float32) if read.is_floating_point() else read
    return weights


def _metadata(path: Path | str) -> dict[str, Any]:
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
    return header
