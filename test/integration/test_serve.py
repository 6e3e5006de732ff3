"""`physis serve` with workers that the real torchrun starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from own_domain import free_domain

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PATIENCE_S = 150.0


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_serve_waits_for_torchruns_workers_and_both_end_in_order(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    environment = {
        **os.environ,
        "PHYSIS_KEY": os.urandom(16).hex(),
        "ROS_DOMAIN_ID": str(free_domain()),
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "OMP_NUM_THREADS": "1",
    }
    log = tmp_path / "serve.log"
    with log.open("w") as out:
        serve = subprocess.Popen(
            [sys.executable, "-m", "physis_ros.cli.main", "serve", "--front", address],
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
    torchrun = None
    try:
        _until(lambda: _listening(address), serve)
        torchrun = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
                "-m",
                "physis_core.worker.process",
                "--front",
                address,
            ],
            env=environment,
            cwd=ROOT,
        )
        _until(lambda: "in 2 workers; warm-up" in log.read_text(), serve)
        serve.terminate()
        assert serve.wait(PATIENCE_S) == 0
        assert torchrun.wait(PATIENCE_S) == 0
    finally:
        for process in (serve, torchrun):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def _listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


def _until(holds, serve: subprocess.Popen) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert serve.poll() is None, serve.returncode
        assert time.monotonic() < end
        time.sleep(0.1)
