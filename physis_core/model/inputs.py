"""What a checkpoint wants to see, read from its metadata without torch: for robot hosts."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physis_core.types import UserError

_METADATA_KEY = "physis"
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInputs:
    """`image_size` is (height, width); `period_s` is the chunk period that training knew."""

    camera_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    image_size: tuple[int, int]
    period_s: float


def read_model_inputs(path: Path | str) -> ModelInputs:
    """Raises UserError: no such file, no safetensors file, or no physis metadata in it."""
    config = _metadata(Path(path)).get("config")
    if not isinstance(config, dict):
        raise UserError("checkpoint", str(path), "its metadata holds no configuration")
    try:
        height, width = (int(side) for side in config["image_size"])
        return ModelInputs(
            camera_names=tuple(str(name) for name in config["camera_names"]),
            joint_names=tuple(str(name) for name in config["joint_names"]),
            image_size=(height, width),
            period_s=float(config["period_s"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            "checkpoint", str(path), f"its configuration does not say {error}"
        ) from error


def _metadata(path: Path) -> dict[str, Any]:
    """A safetensors file begins with the length of a JSON header, little-endian in eight bytes."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ValueError("header too long")
            header = json.loads(file.read(size))
        found = json.loads(header["__metadata__"][_METADATA_KEY])
    except OSError as error:
        raise UserError("checkpoint", str(path), error.strerror or "cannot be read") from error
    except KeyError as error:
        raise UserError(
            "checkpoint", str(path), f"has no metadata under {_METADATA_KEY!r}"
        ) from error
    except (struct.error, ValueError, TypeError) as error:
        raise UserError("checkpoint", str(path), "is not a safetensors file") from error
    if not isinstance(found, dict):
        raise UserError("checkpoint", str(path), "its metadata is no JSON object")
    return found
