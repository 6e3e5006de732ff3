"""The metadata of one of our safetensors files, read without torch and without the weights.

Under the metadata key `physis` lies a JSON object {"format", "config", "training"}.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from physis_core.types import UserError

METADATA_KEY = "physis"
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHeader:
    """What a safetensors file says of one tensor. `dtype` is its name there, such as BF16."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int


def file_format(path: Path | str) -> str | None:
    """The format that the file names; None for any other file."""
    try:
        found = read_metadata(path).get("format")
    except UserError:
        return None
    return found if isinstance(found, str) else None


def read_header(path: Path | str, kind: str) -> dict[str, Any]:
    """Raises UserError where the file is missing, or not of the format `kind`."""
    header = read_metadata(path)
    if header.get("format") != kind:
        raise UserError("model", str(path), f"is of format {header.get('format')}, not {kind}")
    if not isinstance(header.get("config"), dict):
        raise UserError("config", header.get("config"), f"{path} holds no configuration")
    return header


def tensor_headers(path: Path | str) -> dict[str, TensorHeader]:
    """By name, without reading the tensors.

    Raises:
        UserError: no such file, no safetensors file, or its end is missing.
    """
    header, begin = _json_header(path)
    found: dict[str, TensorHeader] = {}
    end = 0
    try:
        for name, value in header.items():
            if name == "__metadata__":
                continue
            first, last = value["data_offsets"]
            end = max(end, last)
            found[name] = TensorHeader(
                shape=tuple(value["shape"]), dtype=value["dtype"], bytes=last - first
            )
    except (KeyError, TypeError, ValueError):
        raise UserError("model", str(path), "is not a safetensors file") from None
    size = Path(path).stat().st_size
    if size < begin + end:
        raise UserError(
            "model", str(path), f"is cut off: {size} of {begin + end} bytes are there; download it"
        )
    return found


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Raises UserError: no such file, no safetensors file, or no metadata of ours in it."""
    header, _ = _json_header(path)
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or METADATA_KEY not in metadata:
        raise UserError("model", str(path), f"has no metadata under {METADATA_KEY!r}")
    try:
        found = json.loads(metadata[METADATA_KEY])
    except (ValueError, TypeError) as error:
        raise UserError("model", str(path), f"its metadata is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError("model", str(path), f"its metadata {METADATA_KEY!r} is not a JSON object")
    return found


def _json_header(path: Path | str) -> tuple[dict[str, Any], int]:
    """The file's JSON header, and where its tensors begin.

    A safetensors file begins with the length of that header, little-endian in eight bytes.
    """
    try:
        with Path(path).open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ValueError("header too long")
            header = json.loads(file.read(size))
        if not isinstance(header, dict):
            raise ValueError("the header must be an object")
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UserError("model", str(path), reason or "cannot be read") from error
    except (struct.error, ValueError) as error:
        raise UserError("model", str(path), "is not a safetensors file") from error
    return header, 8 + size
