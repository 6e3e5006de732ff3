"""How messages travel between the engine and its workers.

A message is one frame: the length of its msgpack text, the text, then the bytes of its arrays in
the order in which the text names them. `multiprocessing.connection` carries the frames after its
own authentication by a shared key. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from physis_core.cluster.messages import Message, Observe, ToEngine, ToWorker
from physis_core.cluster.threads import start_thread
from physis_core.types import Array

Piece = bytes | memoryview
Received = TypeVar("Received")

_LENGTH = struct.Struct("<I")
_WHOLE, _PART = b"w", b"p"
_TOTAL = struct.Struct("<Q")
_SHORT, _LONG = struct.Struct("!i"), struct.Struct("!iQ")
_MOST_SHORT = 0x7FFFFFFF
MOST_QUEUED_BYTES = 1 << 28
"""A peer for which more than this waits is taken for lost."""
_CLOSE_S = 1.0
PART_BYTES = 1 << 18
"""Most that a large message sends at once: what is small waits no longer than this takes."""
MOST_BYTES = 1 << 33
"""A longer message is refused."""
_ARRAY = 1
"""Extension type of an array in the text: its type and shape."""
_NUMBERS = "biufc"
"""Kinds of arrays that may travel: truth values, integers, floats, complex numbers."""
_DTYPE = re.compile(rf"[<>|][{_NUMBERS}]\d{{1,2}}")


class BadMessageError(ValueError):
    """What came is not a message that this end takes. The text is one line."""


def encode(message: Message) -> bytes:
    return b"".join(_pieces(message))


def _pieces(message: Message) -> list[Piece]:
    """What a frame is made of; arrays are not copied.

    Raises:
        TypeError: a value that no message can hold.
    """
    parts: list[Piece] = []

    def describe(value: Any) -> msgspec.msgpack.Ext:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS:
            kind = getattr(value, "dtype", type(value).__name__)
            raise TypeError(f"{type(message).__name__}: a value of type {kind} cannot be sent")
        # Not ascontiguousarray: it would turn a scalar into a row of one.
        flat = np.asarray(value, order="C")
        bytes_of: Any = flat.reshape(-1).view(np.uint8)
        parts.append(memoryview(bytes_of))
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode((flat.dtype.str, flat.shape)))

    text = msgspec.msgpack.encode(message, enc_hook=describe)
    return [_LENGTH.pack(len(text)), text, *parts]


class Decoder(Generic[Received]):
    """Reads messages of one direction. One thread at a time: it remembers where it reads."""

    def __init__(self, kinds: Any) -> None:
        self._text: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(
            kinds, ext_hook=self._array
        )
        self._described: msgspec.msgpack.Decoder[tuple[str, tuple[int, ...]]] = (
            msgspec.msgpack.Decoder(tuple[str, tuple[int, ...]])
        )
        self._frame: bytes | bytearray = b""
        self._offset = 0

    def decode(self, frame: bytes | bytearray, start: int = 0) -> Received:
        """The message that begins at `start`; its arrays are views of `frame`.

        Raises:
            BadMessageError: it is not whole, or no message that this end takes.
        """
        try:
            (size,) = _LENGTH.unpack_from(frame, start)
            text = memoryview(frame)[start + _LENGTH.size :]
            if size > len(text):
                raise BadMessageError(f"{size} bytes of text announced, {len(text)} came")
            self._frame, self._offset = frame, start + _LENGTH.size + size
            message = self._text.decode(text[:size])
            left = len(frame) - self._offset
        except BadMessageError:
            raise
        except (
            msgspec.MsgspecError,
            struct.error,
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise BadMessageError(" ".join(str(error).split())) from None
        finally:
            self._frame = b""
        if left:
            raise BadMessageError(f"{left} bytes too many")
        return message

    def _array(self, code: int, data: memoryview) -> Array:
        if code != _ARRAY:
            raise BadMessageError(f"extension type {code} is unknown")
        name, shape = self._described.decode(data)
        if not _DTYPE.fullmatch(name):
            raise BadMessageError(f"arrays of {name!r} do not travel")
        dtype = np.dtype(name)
        count = 1
        for length in shape:
            if length < 0:
                raise BadMessageError(f"shape {shape} has a length below 0")
            count *= length
        end = self._offset + count * dtype.itemsize
        if end > len(self._frame):
            raise BadMessageError(f"an array of shape {shape} is not whole")
        array = np.frombuffer(self._frame, dtype, count, self._offset).reshape(shape)
        self._offset = end
        return array


def worker_decoder() -> Decoder[ToWorker]:
    """For a worker: what the engine sends."""
    return Decoder(ToWorker)


def engine_decoder() -> Decoder[ToEngine]:
    """For the engine: what a worker sends."""
    return Decoder(ToEngine)


def _own_socket(connection: Connection) -> socket.socket:
    """The connection's socket once more, for sends that do not wait.

    Without TCP_NODELAY a second small message is kept back until the first is acknowledged, and the
    other end waits 40 ms with that: a chunk's place would be given back so much later.
    """
    end = socket.socket(fileno=os.dup(connection.fileno()))
    if end.family in (socket.AF_INET, socket.AF_INET6):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return end


class Channel(Generic[Received]):
    """One end of a connection between engine and worker. Any thread sends, one receives.

    `send` never waits for the peer: what the socket does not take at once is queued, and a thread
    sends it. Messages of `send` keep their order, except that a queued `Observe` gives way to a
    newer one of its stream. Messages of `send_large` keep their order among themselves; a message
    of `send` may overtake them.
    """

    def __init__(self, connection: Connection, decoder: Decoder[Received]) -> None:
        self._connection = connection
        self._decoder = decoder
        self._socket = _own_socket(connection)
        self._changed = threading.Condition()
        """Guards what follows."""
        self._queued: dict[int | tuple[str, int], bytes | memoryview] = {}
        self._queued_bytes = 0
        self._next_key = 0
        self._sending = False
        """Whether a thread sends what is queued."""
        self._gone = False
        self._sending_large = threading.Lock()
        self._large = bytearray()

    def send(self, message: Message) -> bool:
        """False where the other end is gone: the reader of this end reports the loss."""
        key = ("observe", message.stream) if isinstance(message, Observe) else None
        return self._send((_WHOLE, *_pieces(message)), key)

    def send_large(self, message: Message) -> bool:
        """As `send`, in parts, between which other messages pass. Waits for the peer."""
        pieces = [memoryview(piece) for piece in _pieces(message)]
        total = sum(piece.nbytes for piece in pieces)
        with self._sending_large:
            part: list[Piece] = [_PART, _TOTAL.pack(total)]
            room = PART_BYTES
            for whole in pieces:
                piece = whole
                while piece.nbytes:
                    part.append(piece[:room])
                    taken = min(room, piece.nbytes)
                    piece, room = piece[taken:], room - taken
                    if room == 0:
                        if not self._send_and_wait(part):
                            return False
                        part, room = [_PART, _TOTAL.pack(total)], PART_BYTES
            return room == PART_BYTES or self._send_and_wait(part)

    def _send_and_wait(self, part: Sequence[Piece]) -> bool:
        if not self._send(part):
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._gone or not self._sending)
            return not self._gone

    def _send(self, pieces: Sequence[Piece], key: tuple[str, int] | None = None) -> bool:
        size = sum(len(piece) for piece in pieces)
        # As `Connection.recv_bytes` reads it.
        head = _SHORT.pack(size) if size <= _MOST_SHORT else _LONG.pack(-1, size)
        frame = b"".join((head, *pieces))
        with self._changed:
            if self._gone:
                return False
            if self._sending:
                return self._queue(frame, key)
            try:
                sent = self._socket.send(frame, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._gone = True
                return False
            if sent < len(frame):
                # A frame that was begun must be sent whole: a newer one cannot take its place.
                self._queue(memoryview(frame)[sent:], key if sent == 0 else None)
                self._sending = True
                start_thread("physis-send", self._send_queued, self.drop)
        return True

    def _queue(self, frame: bytes | memoryview, key: tuple[str, int] | None) -> bool:
        if key is not None:
            # At the end and not in the old one's place: a restart may stand between the two.
            self._queued_bytes -= len(self._queued.pop(key, b""))
        if self._queued and self._queued_bytes + len(frame) > MOST_QUEUED_BYTES:
            self.drop("the queue is full")
            return False
        self._next_key += 1
        self._queued[self._next_key if key is None else key] = frame
        self._queued_bytes += len(frame)
        return True

    def _send_queued(self) -> None:
        while True:
            with self._changed:
                if not self._queued or self._gone:
                    self._sending = False
                    self._changed.notify_all()
                    return
                frame = self._queued.pop(next(iter(self._queued)))
                self._queued_bytes -= len(frame)
            try:
                self._socket.sendall(frame)
            except OSError:
                self.drop("the other end is gone")

    def drop(self, _reason: str) -> None:
        """Nothing more is sent, and the reader of this end sees the end of the connection."""
        with self._changed:
            self._gone = True
            self._queued.clear()
            self._queued_bytes = 0
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def receive(self) -> Received | None:
        """Wait for the next message; None at the end of the connection.

        Raises:
            BadMessageError: one came that does not decode; the next one may.
        """
        while True:
            try:
                frame = self._connection.recv_bytes(MOST_BYTES)
            except (EOFError, OSError):
                # Also of a length that nobody sends: where the next frame begins is then unknown.
                return None
            if frame[:1] == _WHOLE:
                return self._decoder.decode(frame, len(_WHOLE))
            if frame[:1] != _PART:
                raise BadMessageError(f"a frame begins with {frame[:1]!r}")
            message = self._take_part(frame)
            if message is not None:
                return message

    def _take_part(self, frame: bytes) -> Received | None:
        begins = 1 + _TOTAL.size
        if len(frame) < begins:
            raise BadMessageError("a part of a large message is not whole")
        (total,) = _TOTAL.unpack_from(frame, 1)
        # Grows with what comes: an announced length alone takes no memory.
        self._large += memoryview(frame)[begins:]
        if len(self._large) < total <= MOST_BYTES:
            return None
        whole, self._large = self._large, bytearray()
        if len(whole) != total:
            raise BadMessageError(f"{total} bytes in parts announced, {len(whole)} came")
        return self._decoder.decode(whole)

    def close(self) -> None:
        """Waits a moment until what is queued is sent."""
        with self._changed:
            self._changed.wait_for(lambda: not self._sending, _CLOSE_S)
        self.drop("closed")
        with self._changed:
            # A thread that sends has its error by now.
            self._changed.wait_for(lambda: not self._sending, _CLOSE_S)
        self._socket.close()
        self._connection.close()
