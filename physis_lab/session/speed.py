"""The processor capacity of this machine, in cores of a reference machine.

`python -m physis_lab.session.speed BEGIN_S SECONDS` works from BEGIN_S on the monotonic clock and
prints how much work was done. One such process runs for each core that this process may use, all
at the same time: what other work, a container's quota or a shared host takes is left out of the
sum.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt

REFERENCE_PER_S = 7.0e4
"""Units of work a second on one core of the machine behind the README's figures."""
_START_S = 1.0
"""Until all processes have been started and have imported numpy."""
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
    """Cores of the reference machine that are free here now. Takes about 1.6 s.

    Raises:
        RuntimeError: a measuring process failed.
    """
    begin_s = time.monotonic() + _START_S
    command = [sys.executable, "-m", "physis_lab.session.speed", str(begin_s), str(_SECONDS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    cores = len(os.sched_getaffinity(0))
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(cores)
    ]
    total = 0
    for process in running:
        said, _ = process.communicate()
        if process.returncode != 0:
            raise RuntimeError(f"measuring the machine's speed ended with {process.returncode}")
        total += int(said)
    return total / _SECONDS / REFERENCE_PER_S


if __name__ == "__main__":
    print(work_done(float(sys.argv[1]), float(sys.argv[2])))
