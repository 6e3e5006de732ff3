"""When the fast closed loop captures, and when each chunk reaches who plays it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChunk:
    """One chunk's times, in seconds of the task's clock; a capture may lie before the task begins.

    captures_s: of the observations that touched it, oldest first: one with `refresh: entry`, one
    per denoising step with `every_step`. `told_s` is the lookahead that the model was told: its
    points begin at the NEWEST capture + `told_s`. From `arrives_s` on it is with the buffer.
    """

    captures_s: tuple[float, ...]
    told_s: float
    arrives_s: float

    def __post_init__(self) -> None:
        if not self.captures_s or list(self.captures_s) != sorted(self.captures_s):
            raise UserError("captures_s", self.captures_s, "at least one, oldest first")
        if not self.told_s >= 0.0:
            raise UserError("told_s", self.told_s, "must not be negative")
        if not self.arrives_s >= self.captures_s[-1]:
            raise UserError("arrives_s", self.arrives_s, "lies before the capture")

    @property
    def start_s(self) -> float:
        """When its first point is due."""
        return self.captures_s[-1] + self.told_s


def periodic(
    *, duration_s: float, period_s: float, lookahead_s: float, handover_s: float = 0.0
) -> tuple[PlannedChunk, ...]:
    """A chunk every `period_s` from time 0, each `lookahead_s` from capture to exit, and from there
    `handover_s` to the buffer."""
    return tuple(
        PlannedChunk(
            captures_s=(n * period_s,),
            told_s=lookahead_s,
            arrives_s=n * period_s + lookahead_s + handover_s,
        )
        for n in range(math.ceil(duration_s / period_s - 1e-9))
    )


def looks_by_tick(
    planned: Sequence[PlannedChunk], tick_s: float
) -> dict[int, list[tuple[int, bool]]]:
    """Tick -> which chunks look at the world there (by number), and whether it is their last look.

    Chunks must be in the order in which they are made: by their last capture.
    """
    out: dict[int, list[tuple[int, bool]]] = {}
    last_s = -math.inf
    for number, chunk in enumerate(planned):
        if chunk.captures_s[-1] < last_s:
            raise UserError("planned", number, "was captured before the chunk before it")
        last_s = chunk.captures_s[-1]
        for look, at_s in enumerate(chunk.captures_s, start=1):
            tick = round(at_s / tick_s)
            out.setdefault(tick, []).append((number, look == len(chunk.captures_s)))
    return out
