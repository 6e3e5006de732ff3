"""Capture and arrival times of the chunks of a fast closed loop. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChunk:
    """Times of one chunk, in seconds of the task's clock. A capture may precede the task's start.

    captures_s: captures of the observations that it used, oldest first: one with `refresh: entry`,
    one per denoising step with `every_step`. lookahead_s: the model's input; the points begin at
    the NEWEST capture + `lookahead_s`. arrives_s: when the chunk reaches the buffer.
    """

    captures_s: tuple[float, ...]
    lookahead_s: float
    arrives_s: float

    def __post_init__(self) -> None:
        if not self.captures_s or list(self.captures_s) != sorted(self.captures_s):
            raise UserError("captures_s", self.captures_s, "at least one, oldest first")
        if not self.lookahead_s >= 0.0:
            raise UserError("lookahead_s", self.lookahead_s, "must not be negative")
        if not self.arrives_s >= self.captures_s[-1]:
            raise UserError("arrives_s", self.arrives_s, "lies before the capture")

    @property
    def start_s(self) -> float:
        """When the first point is due."""
        return self.captures_s[-1] + self.lookahead_s


def periodic(
    *, duration_s: float, period_s: float, lookahead_s: float, handover_s: float = 0.0
) -> tuple[PlannedChunk, ...]:
    """One chunk per `period_s` from time 0 on.

    Each takes `lookahead_s` from its capture to its exit and `handover_s` from there to the buffer.
    """
    return tuple(
        PlannedChunk(
            captures_s=(n * period_s,),
            lookahead_s=lookahead_s,
            arrives_s=n * period_s + lookahead_s + handover_s,
        )
        for n in range(math.ceil(duration_s / period_s - 1e-9))
    )


def captures_by_tick(
    planned: Sequence[PlannedChunk], tick_s: float
) -> dict[int, list[tuple[int, bool]]]:
    """Tick -> the chunks that take an observation there, each with whether it is their last one.

    Chunks are given by their number and must be ordered by their last capture.
    """
    out: dict[int, list[tuple[int, bool]]] = {}
    last_s = -math.inf
    for number, chunk in enumerate(planned):
        if chunk.captures_s[-1] < last_s:
            raise UserError("planned", number, "was captured before the chunk before it")
        last_s = chunk.captures_s[-1]
        for number_of_capture, at_s in enumerate(chunk.captures_s, start=1):
            tick = round(at_s / tick_s)
            out.setdefault(tick, []).append((number, number_of_capture == len(chunk.captures_s)))
    return out
