"""What the threads of engine and workers have in common: waking one another, and a reported end."""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable

_PR_SET_TIMERSLACK = 29


def start_thread(
    name: str, run: Callable[[], None], failed: Callable[[str], None]
) -> threading.Thread:
    """Start a daemon thread. Where `run` raises, `failed` gets the reason, in that thread."""

    def reported() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            failed(f"thread {name}: {described(error)}")

    thread = threading.Thread(target=reported, name=name, daemon=True)
    thread.start()
    return thread


def described(error: BaseException) -> str:
    """An exception on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def sleep_precisely() -> None:
    """Ask the kernel to end this thread's sleeps on time instead of up to 50 us late."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)


class Wake:
    """A binary semaphore: any thread rings, one thread sleeps on it. Rings do not add up."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            # Rung already and not yet slept on: the sleeper will look at everything anyway.
            return

    def wait(self, timeout_s: float) -> bool:
        """Sleep until rung or `timeout_s` passed (negative or infinite: for ever)."""
        if timeout_s < 0.0 or timeout_s > 1e6:
            return self._lock.acquire()
        return self._lock.acquire(timeout=timeout_s)
