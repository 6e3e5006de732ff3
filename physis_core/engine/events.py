"""What the engine tells: events as they happen, and a snapshot on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from physis_core.engine.stream import StreamFigures
from physis_core.pipeline.overload import OverloadState

EventKind = Literal[
    "stream_opened",
    "stream_restarted",
    "stream_closed",
    "stream_failed",
    "chunks_dropped",
    "stream_recovered",
    "worker_lost",
    "worker_back",
    "worker_given_up",
    "edge_lost",
    "edge_given_up",
    "overload",
    "message_refused",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent:
    """Something that an operator may want to know. `count` is of dropped chunks."""

    kind: EventKind
    reason: str
    stream_id: str = ""
    worker: int = -1
    count: int = 0


class Announcer:
    """Hands events on to whoever listens."""

    def __init__(self, on_event: Callable[[EngineEvent], None] | None) -> None:
        self._on_event = on_event

    def __call__(
        self,
        kind: EventKind,
        reason: str,
        stream_id: str = "",
        *,
        worker: int = -1,
        count: int = 0,
    ) -> None:
        if self._on_event is not None:
            self._on_event(
                EngineEvent(
                    kind=kind, reason=reason, stream_id=stream_id, worker=worker, count=count
                )
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """`warmup_s` is of the slowest worker and stands in no other figure."""

    running: bool
    warmup_s: float
    workers: int
    workers_alive: tuple[int, ...]
    overload: OverloadState
    streams: tuple[StreamFigures, ...]
