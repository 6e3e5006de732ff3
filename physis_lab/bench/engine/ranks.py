"""Start one process per rank of a peer, wait for all, and read their results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


def run_ranks(module: str, orders: Sequence[Mapping[str, Any]], *, timeout_s: float) -> list[Any]:
    """Run `python -m MODULE ORDER` for each order (JSON); returns each last output line as JSON.

    None stands for a rank without output. All processes have ended when this returns or raises.

    Raises:
        RuntimeError: a rank failed; the message holds the end of its output.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(order)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in orders
    ]
    try:
        said = [process.communicate(timeout=timeout_s) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, said, strict=True):
        if process.returncode != 0:
            raise RuntimeError(f"{module} failed: {errors[-800:]}")
    lines = [output.strip().splitlines() for output, _ in said]
    return [json.loads(own[-1]) if own else None for own in lines]
