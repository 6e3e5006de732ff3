"""How messages travel between the engine and its workers.

A message is one frame: the length of its msgpack text, the text, then the bytes of its arrays in
the order in which the text names them. `multiprocessing.connection` carries the frames after its
own authentication by a shared key. Nothing is pickled.
"""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from physis_core.cluster.messages import Message, ToEngine, ToWorker
from physis_core.types import Array

Piece = bytes | memoryview
Received = TypeVar("Received")

_LENGTH = struct.Struct("<I")
_WHOLE, _PART = b"w", b"p"
_TOTAL = struct.Struct("<Q")
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


def _send_at_once(connection: Connection) -> None:
    """Without this TCP keeps a second small message back until the first is acknowledged, and the
    other end waits 40 ms with that: a chunk's place would be given back so much later."""
    descriptor = os.dup(connection.fileno())
    with socket.socket(fileno=descriptor) as end:
        if end.family in (socket.AF_INET, socket.AF_INET6):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Channel(Generic[Received]):
    """One end of a connection between engine and worker. Any thread sends, one receives.

    Messages of `send` keep their order. Those of `send_large` keep theirs among themselves; a
    message of `send` may overtake them.
    """

    def __init__(self, connection: Connection, decoder: Decoder[Received]) -> None:
        _send_at_once(connection)
        self._connection = connection
        self._decoder = decoder
        self._sending = threading.Lock()
        self._sending_large = threading.Lock()
        self._large = bytearray()

    def send(self, message: Message) -> bool:
        """False where the other end is gone: the reader of this end reports the loss."""
        return self._send(b"".join((_WHOLE, *_pieces(message))))

    def send_large(self, message: Message) -> bool:
        """As `send`, in parts, between which other messages pass."""
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
        self._connection.close()
