"""Between the front and its workers: small named messages with arrays beside them, and no pickle.

A message is one frame: the length of a JSON text, the text, then the arrays' bytes.
`multiprocessing.connection` carries the frames (`send_bytes`, `recv_bytes`) after its own
authentication by a shared key.
"""

from __future__ import annotations

import ctypes
import json
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from physis_core.types import Array

_LENGTH = struct.Struct("<I")


@dataclass(slots=True, eq=False)
class Message:
    """`kind` says what is asked or told; `fields` is JSON; `arrays` are named and travel as bytes.

    Front to worker: ping, clock, open, condition, restart, close, release, observe, stats,
    overload, stall, stop; after a loss relink, resume, restore, past.
    Worker to front: hello, pong, ready, fatal, done (answers one request), exit, retired, failed,
    stats, saved, linked, edge_lost, stopped. `dead` is made at the front when a worker ends.
    """

    kind: str
    fields: dict[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)


OnMessage = Callable[[int, Message], None]
"""(worker, message), called in whatever thread received it."""
GivenUp = Callable[[], bool]
"""Asked while workers start; true ends the start."""


def never() -> bool:
    return False


def encode(message: Message) -> bytes:
    described = []
    parts = []
    for name, array in message.arrays.items():
        # Not ascontiguousarray: it would turn a scalar into a row of one.
        flat = np.asarray(array, order="C")
        described.append([name, flat.dtype.str, flat.shape])
        parts.append(flat.tobytes())
    head = json.dumps(
        {"kind": message.kind, "fields": message.fields, "arrays": described}
    ).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *parts))


def decode(frame: bytes) -> Message:
    """Arrays are read-only views of `frame`. Raises ValueError where the frame is not whole."""
    (size,) = _LENGTH.unpack_from(frame, 0)
    offset = _LENGTH.size + size
    head = json.loads(frame[_LENGTH.size : offset])
    arrays: dict[str, Array] = {}
    for name, dtype, shape in head["arrays"]:
        kind = np.dtype(dtype)
        count = 1
        for n in shape:
            count *= n
        arrays[name] = np.frombuffer(frame, kind, count, offset).reshape(shape)
        offset += count * kind.itemsize
    if offset != len(frame):
        raise ValueError(f"frame: {len(frame)!r}: bytes, {offset} were announced")
    return Message(head["kind"], head["fields"], arrays)


_PR_SET_TIMERSLACK = 29


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


class Channel:
    """One end of a front-worker connection. `send` may be called from any thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message) -> bool:
        """False where the other end is gone: the reader of this end reports the loss."""
        frame = encode(message)
        with self._sending:
            try:
                self._connection.send_bytes(frame)
            except OSError:
                return False
        return True

    def receive(self) -> Message | None:
        """Wait for the next message; None at the end of the connection."""
        try:
            return decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self._connection.close()
