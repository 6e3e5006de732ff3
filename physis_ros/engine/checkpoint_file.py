"""Where a checkpoint named in a parameter lies."""

from __future__ import annotations

from pathlib import Path

from physis_core.types import UserError
from physis_ros.node.share import share_directories


def checkpoint_path(checkpoint: str) -> Path:
    """A path as it is, or the file of that name in `checkpoints/`.

    Raises:
        UserError: neither exists; the message names the checkpoints that are there.
    """
    given = Path(checkpoint).expanduser()
    if given.is_file():
        return given.resolve()
    known: set[str] = set()
    for share in share_directories():
        folder = share / "checkpoints"
        named = folder / f"{given.stem}.safetensors"
        if given.parent in (Path(), Path("checkpoints")) and named.is_file():
            return named.resolve()
        known.update(path.stem for path in folder.glob("*.safetensors"))
    there = ", ".join(sorted(known)) or "none"
    raise UserError("checkpoint", checkpoint, f"no such file; in checkpoints/: {there}")
