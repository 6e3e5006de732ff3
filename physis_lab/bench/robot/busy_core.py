"""Keeps a core and its caches busy: `python -m physis_lab.bench.robot.busy_core`, until killed.

Runs at normal priority like an engine, so real-time threads preempt it.
"""

from __future__ import annotations

import numpy as np

_SIZE = 384


def main() -> None:
    matrix = np.random.default_rng(0).random((_SIZE, _SIZE)) / _SIZE
    while True:
        matrix = np.clip(matrix @ matrix + 1e-3, 0.0, 1.0 / _SIZE)


if __name__ == "__main__":
    main()
