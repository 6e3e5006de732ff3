"""A running `physis up`, its output so far, and the processes below it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from physis_ros.stack.description import NODE_MODULES

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


class Up:
    """`words` are what stands behind `physis up`, the stack first."""

    def __init__(self, domain: int, folder: Path, *words: str) -> None:
        self.result = folder / "up.json"
        self.log = folder / "up.log"
        command = [sys.executable, "-m", "physis_ros.cli.main", "up", *words]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [*command, "--json", str(self.result)],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "ROS_DOMAIN_ID": str(domain)},
            )
        self.below: set[psutil.Process] = set()

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def node(self, name: str, namespace: str = "") -> psutil.Process | None:
        """The process of a node, once it runs its module."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.below.add(child)
            try:
                words = child.cmdline()
            except psutil.NoSuchProcess:
                continue
            if NODE_MODULES[name] in words and f"__ns:=/{namespace}" in words:
                return child
        return None

    def wait(self) -> int:
        return self.process.wait(timeout=PATIENCE_S)

    def outcome(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.result.read_text())
        return result

    def assert_nothing_is_left(self) -> None:
        _, alive = psutil.wait_procs(list(self.below), timeout=PATIENCE_S)
        assert not alive, self.text()

    def close(self) -> None:
        """Those below go with it."""
        self.process.kill()
        self.process.wait()
