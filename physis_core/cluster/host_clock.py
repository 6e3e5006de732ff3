"""One time for all workers: the front's steady clock, also on hosts whose own steady clock
differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass


class HostClock:
    """The front's steady time, as this process knows it. Implements `Clock`."""

    __slots__ = ("_offset_s",)

    def __init__(self) -> None:
        self._offset_s = 0.0

    def now_s(self) -> float:
        return time.monotonic() - self._offset_s

    def shift(self, by_s: float) -> None:
        """This clock turned out to be ahead of the front's by so much."""
        self._offset_s += by_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question and its answer: front time when asked and when heard, the worker's time
    between.
    """

    asked_s: float
    remote_s: float
    heard_s: float

    @property
    def round_trip_s(self) -> float:
        return self.heard_s - self.asked_s

    @property
    def ahead_s(self) -> float:
        """How far the worker's clock is ahead, wrong by at most half a round trip."""
        return self.remote_s - (self.asked_s + self.heard_s) / 2.0


def clock_error_s(exchanges: Sequence[Exchange]) -> float:
    """How far the worker's clock is ahead by the quickest exchange (as in Cristian's algorithm).

    0 where the round trip could explain all of it: two processes of one host share one clock, and
    must not be pulled apart by the noise of the question.
    """
    best = min(exchanges, key=lambda e: e.round_trip_s)
    return best.ahead_s if abs(best.ahead_s) > best.round_trip_s / 2.0 else 0.0


class ClockWatch:
    """Quartz drifts: gathers exchanges with one worker, and now and then says how far to
    correct.
    """

    def __init__(self, every: int = 40) -> None:
        self._every = every
        self._exchanges: list[Exchange] = []

    def add(self, exchange: Exchange) -> float:
        """Seconds by which the worker's clock should be shifted; mostly 0."""
        self._exchanges.append(exchange)
        if len(self._exchanges) < self._every:
            return 0.0
        error_s = clock_error_s(self._exchanges)
        self._exchanges.clear()
        return error_s
