"""An edge between two devices of different worker processes: chunks one way, credits the other.

What the event loop asks of its two ends, and how a payload lies in a message. Nothing queues
without bound: a chunk is sent only with a credit of its (stream, stage boundary), and a credit is
sent only for a chunk that started computing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from physis_core.model.protocol import ModelSpec, Payload, TensorSpec
from physis_core.pipeline.stages import InFlight
from physis_core.types import UserError
from physis_core.worker.links.envelope import ENVELOPE_BYTES

_ALIGN = 16
FOREVER = timedelta(days=3650)
"""An idle stream is no error: the loss of a peer closes its sockets and is seen at once."""

Credit = tuple[int, int, int]
"""(stream, epoch, stage that freed a place)."""


class LinkSender(Protocol):
    """Source end, used by the loop of the source's worker."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def messages(self) -> int: ...

    @property
    def errors(self) -> int: ...

    def send(self, chunk: InFlight, stage: int) -> None: ...

    def close(self) -> None: ...


class LinkReceiver(Protocol):
    """Target end, used by the loop of the target's worker."""

    def give_credit(self, stream: int, epoch: int, stage: int) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class PayloadLayout:
    """Where the tensors of a payload of each kind lie behind the envelope."""

    def __init__(self, spec: ModelSpec) -> None:
        self._places = {
            True: _places(spec.latent),
            False: _places(spec.hidden),
        }
        self._blocks = spec.blocks

    def bytes_for(self, stages: Sequence[int]) -> int:
        """Size of the messages of an edge that leads to these stages."""
        ends = [self.end(stage) for stage in stages]
        return max(ends, default=ENVELOPE_BYTES)

    def end(self, stage: int) -> int:
        places = self._places[self.begins_step(stage)]
        return places[-1][1] if places else ENVELOPE_BYTES

    def begins_step(self, stage: int) -> bool:
        """Which of the two kinds of payload goes to `stage`: a latent, or a hidden state."""
        return stage % self._blocks == 0

    def views(self, buffer: torch.Tensor, stage: int) -> Payload:
        """Tensors [1, ...] that lie inside `buffer`, for a chunk bound for `stage`."""
        return self._views(buffer, self.begins_step(stage))

    def _views(self, buffer: torch.Tensor, begins_step: bool) -> Payload:
        return tuple(
            buffer[start:end].view(spec.dtype).view(1, *spec.shape)
            for start, end, spec in self._places[begins_step]
        )

    def views_of_kinds(self, buffer: torch.Tensor) -> dict[bool, Payload]:
        """By `begins_step`, for those kinds that fit into `buffer`."""
        return {
            begins_step: self._views(buffer, begins_step)
            for begins_step, places in self._places.items()
            if not places or places[-1][1] <= buffer.numel()
        }


def _places(specs: Sequence[TensorSpec]) -> list[tuple[int, int, TensorSpec]]:
    places = []
    offset = ENVELOPE_BYTES
    for spec in specs:
        places.append((offset, offset + spec.bytes, spec))
        offset += (spec.bytes + _ALIGN - 1) // _ALIGN * _ALIGN
    return places


def check_link(kind: str) -> None:
    """Raises UserError where this machine cannot have such links."""
    if kind == "nccl" and not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise UserError("link", kind, "needs CUDA devices and a torch built with NCCL")
