"""The processor capacity of this machine, in cores of a reference machine.

`python -m physis_lab.session.speed SECONDS` prints `ready`, reads a moment of the monotonic clock,
works from then on and prints how much work was done. One such process runs for each core that this
process may use, all at the same time: what other work, a container's quota or a shared host takes
is left out of the sum.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

REFERENCE_PER_S = 7.0e4
"""Units of work a second on one core of the machine behind the README's figures."""
_LEAD_S = 0.05
"""From the moment at which all are ready to the moment at which all begin."""
_SECONDS = 0.6


def work_done(begin_s: float, seconds: float) -> int:
    """Units of work until `begin_s + seconds` (monotonic clock), begun at `begin_s`."""
    time.sleep(max(0.0, begin_s - time.monotonic()))
    matrix: npt.NDArray[Any] = np.ones((48, 48), dtype=np.float32)
    count = 0
    while time.monotonic() < begin_s + seconds:
        # Half Python, half numpy, as the nodes of a stack.
        matrix = matrix @ matrix
        matrix /= matrix.max()
        sum(range(200))
        count += 1
    return count


def measure_capacity_cores() -> float:
    """Cores of the reference machine that are free here now. Takes about a second.

    Raises:
        RuntimeError: a measuring process failed.
    """
    command = [sys.executable, "-m", "physis_lab.session.speed", str(_SECONDS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in os.sched_getaffinity(0)
    ]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()  # `ready`, or the end of one that failed: seen below
    begin = f"{time.monotonic() + _LEAD_S}\n"
    total = 0
    for process in running:
        pipe = process.stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # one that failed: seen below
            pipe.write(begin)
            pipe.flush()
    for process in running:
        work, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"measuring the machine's speed ended with {process.returncode}")
        total += int(work)
    return total / _SECONDS / REFERENCE_PER_S


if __name__ == "__main__":
    print("ready", flush=True)
    print(work_done(float(sys.stdin.readline()), float(sys.argv[1])))
