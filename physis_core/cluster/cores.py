"""Cores of its own for each worker process of a host.

Left to the scheduler, two busy workers may share a core for a while though another one idles, and a
thread that only hands on a message may wait for a core that the other worker computes on.
"""

from __future__ import annotations

from collections.abc import Collection

from physis_core.types import UserError


def own_cores(allowed: Collection[int], *, worker: int, workers: int, threads: int) -> set[int]:
    """The cores of one worker: `threads` of those that this process may use, by number.

    Raises:
        UserError: there are too few for all workers.
    """
    if workers * threads > len(allowed):
        raise UserError(
            "bind_cores",
            True,
            f"{workers} workers of {threads} threads need {workers * threads} cores, "
            f"there are {len(allowed)}",
        )
    return set(sorted(allowed)[worker * threads : (worker + 1) * threads])
