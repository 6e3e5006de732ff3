"""Clocks: a steady one for every duration and watchdog, and a virtual one for simulation."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds of a clock that never jumps and never goes back."""
        ...


class SteadyClock:
    """CLOCK_MONOTONIC: comparable between processes of one host, never between hosts."""

    def now_s(self) -> float:
        return time.monotonic()


class VirtualClock:
    """Time as the simulator moves it.

    Raises:
        ValueError: when asked to go back.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance_to(self, now_s: float) -> None:
        if now_s < self._now_s:
            raise ValueError(f"now_s: {now_s!r}: before the present {self._now_s!r}")
        self._now_s = now_s
