"""An edge between two CUDA devices: payloads by NCCL, envelopes and credits by gloo.

Only the payload is large, and only it lies on the device; so the gloo link carries everything else
as it does on a CPU, and its order is the edge's order: for each envelope there is exactly one NCCL
message.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from physis_core.cluster.threads import start_thread
from physis_core.pipeline.stages import InFlight
from physis_core.worker.links.envelope import ENVELOPE_BYTES
from physis_core.worker.links.gloo import GlooReceiver, GlooSender
from physis_core.worker.links.link import FOREVER, Credit, PayloadLayout


def nccl_group(store: TCPStore, name: str, rank: int) -> Any:
    """The two-rank NCCL group of an edge. Needs `check_link("nccl")` to have passed."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = FOREVER
    return dist.ProcessGroupNCCL(PrefixStore(name, store), rank, 2, options)


class NcclSender:
    """Source end. Implements `LinkSender`."""

    def __init__(
        self,
        control: Any,
        payload: Any,
        size_bytes: int,
        layout: PayloadLayout,
        device: torch.device,
        *,
        on_credits: Callable[[list[Credit]], None],
        on_lost: Callable[[str], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._gloo = GlooSender(
            control,
            ENVELOPE_BYTES,
            None,
            on_credits=on_credits,
            on_lost=on_lost,
            on_fault=on_fault,
        )
        self._payload = payload
        self._size = size_bytes
        self._layout = layout
        self._device = device
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self._free: list[torch.Tensor] = []
        self._own_bytes = 0

    @property
    def messages(self) -> int:
        return self._gloo.messages

    @property
    def bytes_sent(self) -> int:
        return self._gloo.bytes_sent + self._own_bytes

    @property
    def errors(self) -> int:
        return self._gloo.errors

    def send(self, chunk: InFlight, stage: int) -> None:
        while self._sent and self._sent[0][0].is_completed():
            self._free.append(self._sent.popleft()[1])
        buffer = (
            self._free.pop()
            if self._free
            else torch.empty(self._size, dtype=torch.uint8, device=self._device)
        )
        for place, part in zip(
            self._layout.views(buffer, self._layout.kind(chunk.model, stage)),
            chunk.payload,
            strict=True,
        ):
            place.copy_(part)
        # The envelope first: with it the peer posts its receive, without which NCCL cannot begin.
        self._gloo.send(chunk, stage)
        self._sent.append((self._payload.send([buffer], 1, 0), buffer))
        self._own_bytes += self._size

    def close(self) -> None:
        self._gloo.close()


class NcclReceiver:
    """Target end. Implements `LinkReceiver`. `on_chunk` is called when the payload has arrived."""

    def __init__(
        self,
        control: Any,
        payload: Any,
        size_bytes: int,
        layout: PayloadLayout,
        device: torch.device,
        *,
        on_chunk: Callable[[InFlight], None],
        on_lost: Callable[[str], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._payload = payload
        self._size = size_bytes
        self._layout = layout
        self._device = device
        self._on_chunk = on_chunk
        self._on_lost = on_lost
        self._envelopes: deque[InFlight] = deque()
        self._came = threading.Semaphore(0)
        start_thread("physis-payloads", self._receive, on_fault)
        self._gloo = GlooReceiver(
            control,
            ENVELOPE_BYTES,
            None,
            on_chunk=self._announced,
            on_lost=on_lost,
            on_fault=on_fault,
        )

    def give_credit(self, stream: int, epoch: int, stage: int) -> None:
        self._gloo.give_credit(stream, epoch, stage)

    def flush(self) -> None:
        self._gloo.flush()

    def close(self) -> None:
        self._gloo.close()

    def _announced(self, chunk: InFlight) -> None:
        self._envelopes.append(chunk)
        self._came.release()

    def _receive(self) -> None:
        # A stream of this thread's own: the loop's stream must not wait for the network.
        stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            while True:
                self._came.acquire()
                chunk = self._envelopes.popleft()
                buffer = torch.empty(self._size, dtype=torch.uint8, device=self._device)
                try:
                    self._payload.recv([buffer], 0, 0).wait()
                    stream.synchronize()
                except RuntimeError as error:
                    self._on_lost(str(error))
                    return
                # The loop's stream will read it, and may outlive this thread's interest in it.
                buffer.record_stream(torch.cuda.default_stream(self._device))
                chunk.payload = self._layout.views(
                    buffer, self._layout.kind(chunk.model, chunk.stage)
                )
                self._on_chunk(chunk)
