"""Threads that a node may own: one that acts at a fixed rate, and one that acts on request.

Neither ends in silence: an error of the action ends the thread and is handed to the owner.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from physis_core.observe.histogram import JITTER_BUCKETS_S, CountedWindow, HistogramCounts
from physis_core.types import Percentiles


class LoopTiming:
    """Compares each wake-up with the grid point that it was due at.

    A tick is lost when the loop woke so late that the next grid point had passed too. The loop does
    not make it up; it goes on with the first grid point ahead.
    """

    def __init__(self, *, period_s: float, window: int) -> None:
        self.period_s = period_s
        self._jitter_ms = CountedWindow(window, JITTER_BUCKETS_S)
        self.lost = 0
        self.ticks = 0

    def tick(self, now_s: float, due_s: float) -> float:
        """Record a wake-up at `now_s` that was due at `due_s`. Returns when the next one is due."""
        self.ticks += 1
        late_s = max(0.0, now_s - due_s)
        self._jitter_ms.add(late_s * 1e3)
        skipped = int(late_s / self.period_s)
        self.lost += skipped
        return due_s + (skipped + 1) * self.period_s

    def jitter_ms(self) -> Percentiles:
        return self._jitter_ms.percentiles()

    def jitter_counts(self) -> HistogramCounts:
        """In seconds, of all ticks."""
        return self._jitter_ms.histogram.copy()


class FixedRateThread:
    """Calls `act` every `period_s` from `start` to `stop`, and measures its timing.

    It never makes up for lost time: a grid point that has passed counts as lost, and the thread
    waits for the next one ahead. An error of `act` ends the thread and is passed to `failed`.
    """

    def __init__(
        self,
        name: str,
        act: Callable[[], None],
        failed: Callable[[Exception], None],
        *,
        period_s: float,
        window: int,
    ) -> None:
        self.timing = LoopTiming(period_s=period_s, window=window)
        self._act = act
        self._failed = failed
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when the last call of `act` has ended."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            due_s = time.monotonic()
            while not self._end.is_set():
                time.sleep(max(0.0, due_s - time.monotonic()))
                due_s = self.timing.tick(time.monotonic(), due_s)
                self._act()
        except Exception as error:  # noqa: BLE001  passed to the owner
            self._failed(error)


class OnDemandThread:
    """Calls `act` after each `request`, from `start` to `stop`. Requests made while it acts lead to
    one more call, however many they are. An error of `act` ends the thread and is passed to
    `failed`."""

    def __init__(
        self, name: str, act: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self._act = act
        self._failed = failed
        self._requested = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request(self) -> None:
        """Return at once."""
        self._requested.set()

    def stop(self) -> None:
        """Return when the last call of `act` has ended."""
        self._end.set()
        self._requested.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._requested.wait()
                self._requested.clear()
                if self._end.is_set():
                    return
                self._act()
        except Exception as error:  # noqa: BLE001  passed to the owner
            self._failed(error)
