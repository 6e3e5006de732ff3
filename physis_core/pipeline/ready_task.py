"""A task that may run, as the dispatch sees it."""

from __future__ import annotations

from dataclasses import dataclass

BACKGROUND_S = 1e6
"""Seconds from the release of a chunk without a delivery time to the deadline that it gets here:
after all that have one, and the older first, so that no free-running stream waits for ever."""
BACKGROUND_PRIORITY = 1_000_000
"""Subtracted from the priority of streams without a period: a stream that takes all the time left
must not come before one that is already late."""


@dataclass(slots=True, kw_only=True, eq=False)
class ReadyTask:
    """A task whose hidden state and KV are there. Not frozen: making a frozen one costs more.

    `stream` is a handle of the caller, `stage` the stage index, `block` names the weights (see
    `Costs`). `remaining_s` is the predicted cost of everything after this task until its chunk's
    exit. A larger `priority` is more important; it decides only when not all can be on time.
    """

    stream: int
    epoch: int
    seq: int
    stage: int
    block: int
    step: int
    deadline_s: float
    ready_s: float
    remaining_s: float = 0.0
    priority: int = 0
