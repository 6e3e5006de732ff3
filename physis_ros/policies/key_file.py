"""The API key of a policy server, from a file: on a command line everybody would see it."""

from __future__ import annotations

from pathlib import Path

from physis_core.types import UserError


def read_key(path: str) -> str:
    """The first line of a file; empty for no file. Raises UserError where it cannot be read."""
    if not path:
        return ""
    try:
        key = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError("api_key_file", path, error.strerror or "cannot be read") from None
    if not key or "\n" in key:
        raise UserError("api_key_file", path, "must hold one line, the key")
    return key
