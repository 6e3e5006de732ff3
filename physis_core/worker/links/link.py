"""An edge between two devices of different worker processes: chunks one way, credits the other.

What the event loop asks of its two ends, and how a payload lies in a message. Nothing queues
without bound: a chunk is sent only with a credit of its (stream, stage boundary), and a credit is
sent only for a chunk that started computing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


Kind = tuple[int, bool]
"""Of a payload: the number of its model, and whether it is a latent or a hidden state."""


class PayloadLayout:
    """Where the tensors of a payload of each kind lie behind the envelope. `specs`: of all models,
    in the order of their numbers.
    """

    def __init__(self, specs: Sequence[ModelSpec]) -> None:
        self._places: dict[Kind, list[tuple[int, int, TensorSpec]]] = {}
        for model, spec in enumerate(specs):
            self._places[model, True] = _places(spec.latent)
            self._places[model, False] = _places(spec.hidden)
        self._blocks = [spec.blocks for spec in specs]

    def bytes_for(self, stages: Iterable[tuple[int, int]]) -> int:
        """Size of the messages of an edge that leads to these (model, stage)."""
        ends = (self.end(self.kind(model, stage)) for model, stage in stages)
        return max(ends, default=ENVELOPE_BYTES)

    def end(self, kind: Kind) -> int:
        places = self._places[kind]
        return places[-1][1] if places else ENVELOPE_BYTES

    def kind(self, model: int, stage: int) -> Kind:
        """What goes to `stage`: a latent where it begins a step, else a hidden state."""
        return model, stage % self._blocks[model] == 0

    def views(self, buffer: torch.Tensor, kind: Kind) -> Payload:
        """Tensors [1, ...] that lie inside `buffer`."""
        return tuple(
            buffer[start:end].view(spec.dtype).view(1, *spec.shape)
            for start, end, spec in self._places[kind]
        )

    def views_of_kinds(self, buffer: torch.Tensor) -> dict[Kind, Payload]:
        """For those kinds that fit into `buffer`."""
        return {
            kind: self.views(buffer, kind)
            for kind in self._places
            if self.end(kind) <= buffer.numel()
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
