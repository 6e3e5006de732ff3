"""Finds configuration, launch files and checkpoints: beside the sources, or installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import physis_ros


def share_directories() -> Iterator[Path]:
    """Yield the directories that may hold `config/`, those of the running code first."""
    for part in map(Path, physis_ros.__path__):
        yield part.parent
        # PREFIX/lib/python3.x/site-packages/physis_ros, or PREFIX/local/lib/... on Debian.
        for prefix in part.parents[3:5]:
            yield prefix / "share" / "physis_ros"
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    for name in [*filter(None, prefixes), sys.prefix]:
        yield Path(name) / "share" / "physis_ros"


def share_directory() -> Path:
    """Return the directory that holds `config/`, `launch/` and `checkpoints/`."""
    for directory in share_directories():
        if (directory / "config" / "stacks").is_dir():
            return directory
    raise FileNotFoundError(
        "config/stacks is in none of " + ", ".join(map(str, share_directories()))
    )
