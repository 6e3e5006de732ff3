"""A thread that acts at a fixed rate of the steady clock, and measures how well it does.

It never makes up for lost time: a grid point that has passed is counted as lost, and the next one
that lies ahead is waited for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from physis_ros.node.loop_timing import LoopTiming


class FixedRateThread:
    """Calls `act` every `period_s` from `start` to `stop`. An error of `act` ends the loop and is
    given to `failed`."""

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
        """Returns when the last call of `act` has ended."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            due_s = time.monotonic()
            while not self._end.is_set():
                time.sleep(max(0.0, due_s - time.monotonic()))
                due_s = self.timing.tick(time.monotonic(), due_s)
                self._act()
        except Exception as error:  # noqa: BLE001  handed on, and nothing goes on without the loop
            self._failed(error)
