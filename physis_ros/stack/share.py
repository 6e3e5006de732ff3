"""Where configuration, launch files and checkpoints lie: beside the sources, or installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import physis_ros


def share_directories() -> Iterator[Path]:
    """Yield the places that may hold `config/`, the source tree first."""
    for part in physis_ros.__path__:
        yield Path(part).parent
    prefixes = [
        *filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)),
        sys.prefix,
    ]
    for prefix in prefixes:
        yield Path(prefix) / "share" / "physis_ros"


def share_directory() -> Path:
    """Return the directory that holds `config/`, `launch/` and `checkpoints/`."""
    for directory in share_directories():
        if (directory / "config" / "stacks").is_dir():
            return directory
    raise FileNotFoundError(
        "config/stacks is in none of " + ", ".join(map(str, share_directories()))
    )
