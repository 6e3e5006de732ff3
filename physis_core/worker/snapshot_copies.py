"""A worker's copies of its KV windows for the engine.

The loop copies a window, which must happen between two chunks. A thread turns the copy into a
message and sends it, one window at a time, so that other messages pass between two of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from msgspec import structs
from torch import Tensor

from physis_core.cluster.messages import ToEngine, WindowSaved
from physis_core.cluster.threads import Wake, start_thread
from physis_core.model.protocol import KVWindow
from physis_core.pipeline.stages import InFlight
from physis_core.worker.tensor_arrays import to_arrays


class SnapshotCopies:
    """Args:
    every: a copy after each chunk whose number in its epoch, counted from 1, this divides.
    send: gives the engine a large message; called in the sending thread.
    failed: called with the reason where that thread ends by an error.
    """

    def __init__(
        self, every: int, send: Callable[[ToEngine], object], failed: Callable[[str], None]
    ) -> None:
        self.every = every
        self.taken = 0
        self.skipped = 0
        """Copies left out because the one before was not yet sent: nothing queues without bound."""
        self.bytes = 0
        self.copy_s = 0.0
        """Seconds of the loop's thread."""
        self.send_s = 0.0
        """Seconds of the sending thread, while the loop goes on."""
        self._send = send
        self._queue: deque[tuple[WindowSaved, Mapping[str, Tensor]]] = deque()
        self._waiting: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._wake = Wake()
        self._closed = False
        self._thread = start_thread("physis-snapshots", self._run, failed)

    def take(self, task: InFlight, stage: int, kv: KVWindow | None) -> None:
        """Copy the window of a stage that has just finished `task`; emulated stages have none."""
        key = (task.stream, stage)
        with self._lock:
            if key in self._waiting:
                self.skipped += 1
                return
            self._waiting.add(key)
        start_s = time.monotonic()
        saved = {} if kv is None else kv.snapshot()
        message = WindowSaved(
            stream=task.stream,
            epoch=task.epoch,
            seq=task.seq,
            chunk=task.chunk_id,
            stage=stage,
            saved={},
        )
        self._queue.append((message, saved))
        self.taken += 1
        self.bytes += sum(t.numel() * t.element_size() for t in saved.values())
        self.copy_s += time.monotonic() - start_s
        self._wake.ring()

    def _run(self) -> None:
        while not self._closed:
            while self._queue and not self._closed:
                message, saved = self._queue.popleft()
                start_s = time.monotonic()
                self._send(structs.replace(message, saved=to_arrays(saved)))
                self.send_s += time.monotonic() - start_s
                with self._lock:
                    self._waiting.discard((message.stream, message.stage))
            self._wake.wait(-1.0)

    def close(self) -> None:
        self._closed = True
        self._wake.ring()
        self._thread.join()

    def counters(self) -> dict[str, int | float]:
        return {
            "taken": self.taken,
            "skipped": self.skipped,
            "bytes": self.bytes,
            "copy_s": self.copy_s,
            "send_s": self.send_s,
        }
