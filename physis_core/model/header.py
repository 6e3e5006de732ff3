"""The metadata of one of our safetensors files, read without torch and without the weights.

Under the metadata key `physis` lies a JSON object {"format", "config", "training"}.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from physis_core.types import UserError

METADATA_KEY = "physis"
_MAX_HEADER_BYTES = 100_000_000


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


def read_metadata(path: Path | str) -> dict[str, Any]:
    """Raises UserError: no such file, no safetensors file, or no metadata of ours in it.

    A safetensors file begins with the length of a JSON header, little-endian in eight bytes.
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
