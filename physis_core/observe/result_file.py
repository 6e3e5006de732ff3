"""Results as JSON files: written whole or not at all; undefined numbers become null."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from physis_core.types import UserError


def result_text(result: Mapping[str, Any]) -> str:
    """Standard JSON: NaN and infinity become null; numpy scalars and arrays, and paths, become
    plain values.

    Raises:
        TypeError: the result contains something else.
    """
    return json.dumps(_plain(result), indent=2, allow_nan=False) + "\n"


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write whole or not at all: a reader never sees a partial result."""
    text = result_text(result)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # such as /dev/stdout
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def check_folder(field: str, path: Path | None) -> None:
    """Refuse a file whose directory does not exist; None is no file."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(field, str(path), f"there is no directory {str(path.absolute().parent)!r}")


def check_writable(path: Path) -> None:
    """Refuse a result file that cannot be written, before any work is done."""
    if path.is_dir():
        raise UserError("json", str(path), "is a directory")
    check_folder("json", path)
    existed = path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise UserError("json", str(path), error.strerror or "cannot be written") from error
    if not existed:
        path.unlink()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {_key(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"a result holds a {type(value).__name__}, which JSON does not know")


def _key(key: Any) -> Any:
    """`json` does not accept numpy numbers as keys."""
    return key.item() if hasattr(key, "item") else key
