"""The fixed binary form in which a chunk's own values travel between processes."""

from __future__ import annotations

import struct
from typing import Any

from physis_core.pipeline.stages import MAX_TOUCHES, InFlight

_HEADER = struct.Struct("<IIqQIIQiII4d")
_TOUCHES = struct.Struct(f"<{MAX_TOUCHES}Q")
ENVELOPE_BYTES = (_HEADER.size + _TOUCHES.size + 63) // 64 * 64
"""Rounded up so that the payload behind it starts aligned."""


def pack_into(buffer: Any, chunk: InFlight, stage: int) -> None:
    """Write `chunk`, bound for `stage`, to the first ENVELOPE_BYTES of a writable buffer."""
    touches = chunk.touches
    _HEADER.pack_into(
        buffer,
        0,
        chunk.stream,
        chunk.epoch,
        chunk.chunk_id,
        chunk.seq,
        stage,
        chunk.version,
        chunk.seed,
        chunk.priority,
        chunk.model,
        len(touches),
        chunk.deadline_s,
        chunk.release_s,
        chunk.entry_s,
        chunk.sent_s,
    )
    _TOUCHES.pack_into(buffer, _HEADER.size, *touches, *(0,) * (MAX_TOUCHES - len(touches)))


def unpack_from(buffer: Any) -> InFlight:
    """The chunk of an envelope; block, step, ready time and slot are the receiver's to fill in."""
    (
        stream,
        epoch,
        chunk_id,
        seq,
        stage,
        version,
        seed,
        priority,
        model,
        count,
        deadline_s,
        release_s,
        entry_s,
        sent_s,
    ) = _HEADER.unpack_from(buffer, 0)
    touches = _TOUCHES.unpack_from(buffer, _HEADER.size)[:count]
    return InFlight(
        stream=stream,
        epoch=epoch,
        seq=seq,
        stage=stage,
        block=-1,
        step=-1,
        deadline_s=deadline_s,
        ready_s=0.0,
        priority=priority,
        chunk_id=chunk_id,
        seed=seed,
        version=version,
        model=model,
        release_s=release_s,
        entry_s=entry_s,
        touches=touches,
        sent_s=sent_s,
    )
