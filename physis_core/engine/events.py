"""What the engine says of itself: events as they happen, a snapshot on request, its failure."""

from __future__ import annotations

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
    "chunk_overdue",
    "stream_recovered",
    "worker_lost",
    "worker_back",
    "worker_given_up",
    "edge_lost",
    "edge_given_up",
    "overload",
    "message_refused",
    "engine_failed",
]


class EngineFailedError(RuntimeError):
    """The engine has failed, or was closed: nothing can be asked of it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEvent:
    """Something that an operator may want to know. `count` is of dropped chunks."""

    kind: EventKind
    reason: str
    stream_id: str = ""
    worker: int = -1
    count: int = 0


class Events:
    """Events of one turn of the engine's loop, which delivers them at its end."""

    def __init__(self) -> None:
        self._new: list[EngineEvent] = []

    def add(
        self,
        kind: EventKind,
        reason: str,
        stream_id: str = "",
        *,
        worker: int = -1,
        count: int = 0,
    ) -> None:
        self._new.append(
            EngineEvent(kind=kind, reason=reason, stream_id=stream_id, worker=worker, count=count)
        )

    def take(self) -> list[EngineEvent]:
        new, self._new = self._new, []
        return new


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker that is lost since `since_s`, a time of the engine's steady clock."""

    worker: int
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """`failure` is why the engine has failed, empty where it has not. `warmup_s` is of the slowest
    worker and stands in no other figure. `lost`: workers that are lost now. `now_s`: the engine's
    steady clock.
    """

    running: bool
    failure: str
    warmup_s: float
    workers: int
    workers_alive: tuple[int, ...]
    overload: OverloadState
    streams: tuple[StreamFigures, ...]
    lost: tuple[LostWorker, ...] = ()
    now_s: float = 0.0
