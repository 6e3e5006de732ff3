"""A record of every task in memory of fixed size: one fixed-size record per task in a ring."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

TASK_DTYPE = np.dtype(
    [
        ("stream", "<u4"),
        ("epoch", "<u4"),
        ("chunk", "<i8"),
        ("stage", "<u2"),
        ("device", "<u2"),
        ("batch", "<u4"),
        ("size", "<u2"),
        ("source", "<i2"),
        ("touch", "<u4"),
        ("sent_s", "<f8"),
        ("ready_s", "<f8"),
        ("start_s", "<f8"),
        ("end_s", "<f8"),
    ]
)
"""One task. A `chunk` below 0 is a past one that runs again after a loss. `batch` numbers the
batches of one device, `size` is how many tasks were in it. `source` is the device that the chunk
came from (-1: the engine), `touch` the engine's number of the newest observation in it, `sent_s`
when it left there, `ready_s` when it entered this stage's queue; compute runs from `start_s` to
`end_s`. Seconds of the host's steady clock.
"""

_RECORD = struct.Struct("<IIqHHIHhIdddd")
_SIZE = _RECORD.size
assert TASK_DTYPE.itemsize == _SIZE

Tasks = npt.NDArray[np.void]


class TaskLog:
    """Ring of the newest `capacity` task records. Written and read by one thread."""

    __slots__ = ("_buffer", "_capacity", "_read", "_written")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity: {capacity!r}: must be at least 1")
        self._capacity = capacity
        self._buffer = bytearray(capacity * _RECORD.size)
        self._written = 0
        self._read = 0

    def add(
        self,
        stream: int,
        epoch: int,
        chunk: int,
        stage: int,
        device: int,
        batch: int,
        size: int,
        source: int,
        touch: int,
        sent_s: float,
        ready_s: float,
        start_s: float,
        end_s: float,
    ) -> None:
        written = self._written
        _RECORD.pack_into(
            self._buffer,
            (written % self._capacity) * _SIZE,
            stream,
            epoch,
            chunk,
            stage,
            device,
            batch,
            size,
            source,
            touch,
            sent_s,
            ready_s,
            start_s,
            end_s,
        )
        self._written = written + 1

    def take(self) -> tuple[Tasks, int]:
        """A copy of the records since the last call, oldest first, and how many were overwritten
        unread.
        """
        lost = max(0, self._written - self._read - self._capacity)
        first, last = self._read + lost, self._written
        self._read = last
        ring = np.frombuffer(self._buffer, TASK_DTYPE)
        return ring[np.arange(first, last) % self._capacity].copy(), lost
