"""A thread that does one thing whenever it is asked: what need not be done by who notices it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class AskedThread:
    """Calls `act` after each `ask`, from `start` to `stop`. What is asked while it acts is done
    once more afterwards, however often it was asked. An error of `act` ends it and is given to
    `failed`."""

    def __init__(
        self, name: str, act: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self._act = act
        self._failed = failed
        self._asked = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self) -> None:
        """Returns at once."""
        self._asked.set()

    def stop(self) -> None:
        """Returns when the last call of `act` has ended."""
        self._end.set()
        self._asked.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                self._asked.wait()
                self._asked.clear()
                if self._end.is_set():
                    return
                self._act()
        except Exception as error:  # noqa: BLE001  handed on, as from any other thread
            self._failed(error)
