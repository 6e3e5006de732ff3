"""Between the front and its workers: small named messages with arrays beside them, and no pickle.

A message is one frame: the length of a JSON text, the text, then the arrays' bytes.
`multiprocessing.connection` carries the frames (`send_bytes`, `recv_bytes`) after its own
authentication by a shared key.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from physis_core.types import Array

_LENGTH = struct.Struct("<I")
_WHOLE, _PART = b"w", b"p"
_TOTAL = struct.Struct("<Q")
PART_BYTES = 1 << 18
"""Most that a large message sends at once: what is small waits no longer than this takes."""


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
    return b"".join(_pieces(message))


def _pieces(message: Message) -> list[bytes | memoryview]:
    """What a frame is made of; arrays are not copied."""
    described = []
    parts: list[bytes | memoryview] = []
    for name, array in message.arrays.items():
        # Not ascontiguousarray: it would turn a scalar into a row of one.
        flat = np.asarray(array, order="C")
        described.append([name, flat.dtype.str, flat.shape])
        bytes_of: Any = flat.reshape(-1).view(np.uint8)
        parts.append(memoryview(bytes_of))
    head = json.dumps(
        {"kind": message.kind, "fields": message.fields, "arrays": described}
    ).encode()
    return [_LENGTH.pack(len(head)), head, *parts]


def decode(frame: bytes | bytearray, start: int = 0) -> Message:
    """What begins at `start`; arrays are views of `frame`.

    Raises:
        ValueError: the frame is not whole.
    """
    (size,) = _LENGTH.unpack_from(frame, start)
    offset = start + _LENGTH.size + size
    head = json.loads(frame[start + _LENGTH.size : offset])
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


def _send_at_once(connection: Connection) -> None:
    """Without this TCP keeps a second small message back until the first is acknowledged, and the
    other end waits 40 ms with that: a chunk's place would be given back so much later."""
    descriptor = os.dup(connection.fileno())
    with socket.socket(fileno=descriptor) as end:
        if end.family in (socket.AF_INET, socket.AF_INET6):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Channel:
    """One end of a front-worker connection. Any thread sends, one receives.

    Messages of `send` keep their order. Those of `send_large` keep theirs among themselves; a
    message of `send` may overtake them.
    """

    def __init__(self, connection: Connection) -> None:
        _send_at_once(connection)
        self._connection = connection
        self._sending = threading.Lock()
        self._sending_large = threading.Lock()
        self._large = bytearray()
        self._large_filled = 0

    def send(self, message: Message) -> bool:
        """False where the other end is gone: the reader of this end reports the loss."""
        return self._send(b"".join((_WHOLE, *_pieces(message))))

    def send_large(self, message: Message) -> bool:
        """As `send`, in parts, between which other messages pass."""
        pieces = [memoryview(piece) for piece in _pieces(message)]
        total = sum(piece.nbytes for piece in pieces)
        with self._sending_large:
            part: list[bytes | memoryview] = [_PART, _TOTAL.pack(total)]
            room = PART_BYTES
            for whole in pieces:
                piece = whole
                while piece.nbytes:
                    part.append(piece[:room])
                    taken = min(room, piece.nbytes)
                    piece, room = piece[taken:], room - taken
                    if room == 0:
                        if not self._send(b"".join(part)):
                            return False
                        part, room = [_PART, _TOTAL.pack(total)], PART_BYTES
            return room == PART_BYTES or self._send(b"".join(part))

    def _send(self, frame: bytes) -> bool:
        with self._sending:
            try:
                self._connection.send_bytes(frame)
            except OSError:
                return False
        return True

    def receive(self) -> Message | None:
        """Wait for the next message; None at the end of the connection."""
        while True:
            try:
                frame = self._connection.recv_bytes()
            except (EOFError, OSError):
                return None
            if frame[:1] == _WHOLE:
                return decode(frame, len(_WHOLE))
            message = self._take_part(frame)
            if message is not None:
                return message

    def _take_part(self, frame: bytes) -> Message | None:
        (total,) = _TOTAL.unpack_from(frame, 1)
        part = memoryview(frame)[1 + _TOTAL.size :]
        if self._large_filled == 0:
            self._large = bytearray(total)
        end = self._large_filled + part.nbytes
        self._large[self._large_filled : end] = part
        self._large_filled = end
        if end < total:
            return None
        whole, self._large, self._large_filled = self._large, bytearray(), 0
        return decode(whole)

    def close(self) -> None:
        self._connection.close()
