"""`physis eval --stack` as a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PATIENCE_S = 400.0


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "ROS_DOMAIN_ID"}


def test_bad_input_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    for arguments, said in (
        (("--stack", "--response-ms", "5"), "response_ms: 5.0"),
        (("--stack", "--set", "engin.x=1"), "did you mean 'engine_node'"),
        (("--compare",), "compare: True: needs --stack"),
        (("--like", str(tmp_path / "none"), "--seed", "3"), "seed: 3"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "physis_ros.cli.main", "eval", *arguments],
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not list(tmp_path.glob("runs/*/seed-*"))
