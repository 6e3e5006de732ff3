"""An edge over gloo: one message per chunk, of the edge's fixed size: envelope, then payload.

Each edge is its own two-rank process group, made through the shared store, so that a lost peer
breaks its edges and no others. The event loop sends, without waiting. A thread at each end
receives, chunks at the target and credits at the source, and hands them to the loop.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from physis_core.cluster.threads import start_thread
from physis_core.pipeline.stages import InFlight
from physis_core.worker.links.envelope import pack_into, unpack_from
from physis_core.worker.links.link import FOREVER, Credit, PayloadLayout

_CREDITS_A_MESSAGE = 32
_CREDIT_HEAD = struct.Struct("<IIQ")
_CREDIT = struct.Struct("<III")
_CREDIT_BYTES = _CREDIT_HEAD.size + _CREDITS_A_MESSAGE * _CREDIT.size
_CREDIT_RING = 64
_RECEIVES_AHEAD = 2
"""One is being filled while the other waits for what may come meanwhile."""
_STOP_STREAM = 0xFFFFFFFF
"""Stream handle of the message that ends an edge in an orderly way."""


def edge_group(store: TCPStore, name: str, rank: int, host: str) -> Any:
    """The two-rank gloo group of an edge; blocks until the peer has come, too."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = FOREVER
    return dist.ProcessGroupGloo(PrefixStore(name, store), rank, 2, options)


class _Buffer:
    """Memory of one message and the ways to look at it, which cost more to make than to use."""

    __slots__ = ("bytes_of", "payloads", "tensor")

    def __init__(self, size_bytes: int, layout: PayloadLayout | None) -> None:
        self.tensor = torch.empty(size_bytes, dtype=torch.uint8)
        self.bytes_of = _view(self.tensor)
        self.payloads = {} if layout is None else layout.views_of_kinds(self.tensor)


class GlooSender:
    """Args:
    layout: None where no payload travels (emulated devices).
    on_credits, on_lost: called in the receiving thread.
    on_fault: called with the reason where that thread ends by an error of our own.
    """

    def __init__(
        self,
        group: Any,
        size_bytes: int,
        layout: PayloadLayout | None,
        *,
        on_credits: Callable[[list[Credit]], None],
        on_lost: Callable[[str], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._group = group
        self._size = size_bytes
        self._layout = layout
        self._on_credits = on_credits
        self._on_lost = on_lost
        self._free: list[_Buffer] = []
        self._sent: deque[tuple[Any, _Buffer]] = deque()
        self._received = 0
        self._reclaimed = 0
        self._lost = False
        self.bytes_sent = 0
        self.errors = 0
        self.messages = 0
        self._thread = start_thread("physis-credits", self._receive_credits, on_fault)

    def send(self, chunk: InFlight, stage: int) -> None:
        if self._lost:
            return
        buffer = self._free.pop() if self._free else _Buffer(self._size, self._layout)
        pack_into(buffer.bytes_of, chunk, stage)
        if self._layout is not None:
            places = buffer.payloads[self._layout.kind(chunk.model, stage)]
            for place, part in zip(places, chunk.payload, strict=True):
                place.copy_(part)
        self._post(buffer)
        # Not before: the message was waited for, its predecessors' buffers are not.
        self._reclaim()

    def _post(self, buffer: _Buffer) -> None:
        try:
            work = self._group.send([buffer.tensor], 1, 0)
        except RuntimeError as error:
            self._lose(str(error))
            return
        self._sent.append((work, buffer))
        self.messages += 1
        self.bytes_sent += self._size

    def _reclaim(self) -> None:
        """Take back the buffers of messages that the peer says it has received.

        gloo's send work completes only in `wait`; for a received message `wait` returns at once.
        """
        while self._reclaimed < self._received and self._sent:
            work, buffer = self._sent.popleft()
            work.wait()
            self._reclaimed += 1
            self._free.append(buffer)

    def _receive_credits(self) -> None:
        buffer = torch.zeros(_CREDIT_BYTES, dtype=torch.uint8)
        view = _view(buffer)
        while True:
            try:
                self._group.recv([buffer], 1, 1).wait()
            except RuntimeError as error:
                self._lose(str(error))
                return
            count, last, received = _CREDIT_HEAD.unpack_from(view, 0)
            self._received = received
            if count:
                size = _CREDIT.size
                self._on_credits(
                    [_CREDIT.unpack_from(view, _CREDIT_HEAD.size + i * size) for i in range(count)]
                )
            if last:
                return

    def _lose(self, reason: str) -> None:
        self.errors += 1
        if not self._lost:
            self._lost = True
            self._on_lost(reason)

    def close(self) -> None:
        """Tell the peer that nothing more comes. Does not wait for it."""
        if self._lost:
            return
        buffer = _Buffer(self._size, None)
        pack_into(buffer.bytes_of, _stop_chunk(), 0)
        self._post(buffer)


class GlooReceiver:
    """Args:
    on_chunk: called in the receiving thread with the chunk, bound for its `stage`.
    on_fault: called with the reason where that thread ends by an error of our own.
    """

    def __init__(
        self,
        group: Any,
        size_bytes: int,
        layout: PayloadLayout | None,
        *,
        on_chunk: Callable[[InFlight], None],
        on_lost: Callable[[str], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._group = group
        self._size = size_bytes
        self._layout = layout
        self._on_chunk = on_chunk
        self._on_lost = on_lost
        self._pending: list[Credit] = []
        self._ring = [torch.zeros(_CREDIT_BYTES, dtype=torch.uint8) for _ in range(_CREDIT_RING)]
        self._works: list[Any] = [None] * _CREDIT_RING
        self._next = 0
        self._received = 0
        self._lost = False
        self._thread = start_thread("physis-chunks", self._receive_chunks, on_fault)

    def give_credit(self, stream: int, epoch: int, stage: int) -> None:
        """Goes out with `flush`, so that one message carries what one turn of the loop freed."""
        self._pending.append((stream, epoch, stage))

    def flush(self) -> None:
        while self._pending and not self._lost:
            part, self._pending = (
                self._pending[:_CREDITS_A_MESSAGE],
                self._pending[_CREDITS_A_MESSAGE:],
            )
            self._post(part, last=0)

    def _post(self, credits: Sequence[Credit], last: int) -> None:
        slot = self._next % _CREDIT_RING
        self._next += 1
        work = self._works[slot]
        buffer = self._ring[slot]
        view = _view(buffer)
        try:
            if work is not None:
                work.wait()
            _CREDIT_HEAD.pack_into(view, 0, len(credits), last, self._received)
            for i, credit in enumerate(credits):
                _CREDIT.pack_into(view, _CREDIT_HEAD.size + i * _CREDIT.size, *credit)
            self._works[slot] = self._group.send([buffer], 0, 1)
        except RuntimeError as error:
            self._lose(str(error))

    def _receive_chunks(self) -> None:
        asked: deque[tuple[_Buffer, Any]] = deque()
        while True:
            try:
                # After the last chunk was handed on, which may have meant to compute it.
                while len(asked) < _RECEIVES_AHEAD:
                    # Fresh memory each time: the payload is views of it, and a model may carry
                    # them on.
                    buffer = _Buffer(self._size, self._layout)
                    asked.append((buffer, self._group.recv([buffer.tensor], 0, 0)))
                buffer, work = asked.popleft()
                work.wait()
            except RuntimeError as error:
                self._lose(str(error))
                return
            self._received += 1
            chunk = unpack_from(buffer.bytes_of)
            if chunk.stream == _STOP_STREAM:
                return
            if self._layout is not None:
                chunk.payload = buffer.payloads[self._layout.kind(chunk.model, chunk.stage)]
            self._on_chunk(chunk)

    def _lose(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._on_lost(reason)

    def close(self) -> None:
        """Tell the peer that no credit comes any more. Does not wait for it."""
        if not self._lost:
            self._post((), last=1)


def _stop_chunk() -> InFlight:
    return InFlight(
        stream=_STOP_STREAM,
        epoch=0,
        seq=0,
        stage=0,
        block=0,
        step=0,
        deadline_s=0.0,
        ready_s=0.0,
        chunk_id=0,
        seed=0,
        version=0,
        release_s=0.0,
        entry_s=0.0,
        touches=(),
    )


def _view(buffer: torch.Tensor) -> memoryview:
    bytes_of: Any = buffer.numpy()
    return memoryview(bytes_of)
