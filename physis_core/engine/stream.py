"""The front's side of one stream: what goes in, what is on its way, what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from physis_core.cluster.messages import ChunkExit
from physis_core.engine.rebuild import PastChunks
from physis_core.engine.recovery_record import ComingBack
from physis_core.engine.snapshot import SnapshotShelf
from physis_core.observe.percentiles import SlidingWindow
from physis_core.pipeline.injector import Injector, InjectorConfig
from physis_core.pipeline.pacer import Pacer, PacerConfig
from physis_core.pipeline.stages import MAX_TOUCHES
from physis_core.types import (
    Array,
    FinishedChunk,
    ObservationStamp,
    Percentiles,
    Refresh,
    StreamState,
    UserError,
)

Release = Literal["periodic", "free", "on_observation"]
WINDOW = 4096
"""Chunks over which a stream's percentiles are taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """How a stream is to run.

    release: `periodic` lets chunk c in at r_0 + c * period_s with the newest observation; `free` as
        fast as places come free; `on_observation` once per observation (lockstep).
    max_in_flight: most chunks between entry and exit; None: what the route can keep busy.
    max_age_s: an observation older than this, counted from its entry into the engine, starts no
    chunk. max_action_age_s: caps how long the pacer may hold finished chunks.
    hold: False delivers at once and still counts misses.
    check_finite: refuse observations that hold NaN or infinity.
    """

    stream_id: str
    period_s: float | None = None
    release: Release = "periodic"
    seed: int = 0
    refresh: Refresh = "entry"
    priority: int = 0
    route: int = 0
    condition: Mapping[str, Any] = field(default_factory=dict)
    max_in_flight: int | None = None
    max_age_s: float = math.inf
    max_action_age_s: float = math.inf
    expected_response_s: float = 0.0
    margin_s: float = 0.0
    hold: bool = True
    check_finite: bool = True

    def __post_init__(self) -> None:
        if not self.stream_id:
            raise UserError("stream_id", self.stream_id, "must not be empty")
        if self.release not in get_args(Release):
            raise UserError("release", self.release, f"one of {', '.join(get_args(Release))}")
        if self.release == "periodic" and self.period_s is None:
            raise UserError("period_s", None, "a periodic stream needs one")
        if self.refresh not in get_args(Refresh):
            raise UserError("refresh", self.refresh, f"one of {', '.join(get_args(Refresh))}")
        if not 0 <= self.seed < 2**63:
            raise UserError("seed", self.seed, "must be in 0..2^63 - 1")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise UserError("max_in_flight", self.max_in_flight, "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHandle:
    """An admitted stream."""

    stream_id: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures:
    """A snapshot. Percentiles over the newest `WINDOW` chunks, in seconds."""

    stream_id: str
    state: StreamState
    reason: str
    suspended: bool
    """Stands still after a loss, for `reason`."""
    epoch: int
    released: int
    delivered: int
    dropped: int
    superseded: int
    in_flight: int
    misses: int
    buffer_depth_s: float
    pacer_capped: bool
    interval_s: Percentiles
    response_s: Percentiles
    queue_s: Percentiles
    """Entry of the observation to its chunk's start: waiting in the mailbox."""


@dataclass(slots=True, kw_only=True)
class OnItsWay:
    """A chunk between release and retirement."""

    seq: int
    chunk_id: int
    release_s: float
    entry_s: float
    deadline_s: float
    version: int
    exited: bool = False
    """Finished; with clean KV its way goes on."""


@dataclass(slots=True, kw_only=True)
class Suspension:
    """A stream that stands still since a loss, until its route is whole and its KV is back.

    `attempt` counts the beginnings of its return: answers to an older one are not for this one.
    `later` is done when it goes on, or ends.
    """

    lost_s: float
    reason: str
    attempt: int = 0
    resuming: bool = False
    later: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An observation as the engine keeps it: `number` counts them, `entry_s` is when it entered."""

    number: int
    stamp: ObservationStamp
    entry_s: float
    tensors: Mapping[str, Array]


class Stream:
    """State of one stream; owned by the engine's thread."""

    def __init__(
        self, config: StreamConfig, handle: int, max_in_flight: int, passes: int, epoch: int = 0
    ) -> None:
        if config.refresh == "every_step" and passes > MAX_TOUCHES:
            raise UserError("refresh", config.refresh, f"at most {MAX_TOUCHES} steps")
        self.config = config
        self.handle = handle
        self.epoch = epoch
        self.state = StreamState.OPEN
        self.reason = ""
        self.period_s = config.period_s if config.release == "periodic" else None
        self.injector: Injector[Seen] = Injector(
            InjectorConfig(
                period_s=self.period_s, credits=max_in_flight, max_age_s=config.max_age_s
            )
        )
        self.pacer = self._new_pacer()
        self.max_in_flight = max_in_flight
        self.next_seq = 0
        self.on_way: dict[int, OnItsWay] = {}
        self.stamps: dict[int, tuple[ObservationStamp, float]] = {}
        self.finished: dict[int, FinishedChunk] = {}
        self.newest_number = 0
        self.used_number = 0
        self.version = 0
        self.last_version = 0
        self.conditions: dict[int, Mapping[str, Any]] = {0: dict(config.condition)}
        """By version, from the one in use on: what a worker that comes back must know."""
        self.suspended: Suspension | None = None
        self.coming_back: ComingBack | None = None
        self.last_completed: tuple[int, int] | None = None
        """(epoch, chunk id)."""
        self.keeps: SnapshotShelf | PastChunks | None = None
        """What a loss can be made good with."""
        self.when_closed: list[Callable[[], None]] = []
        self.last_exit_s = math.nan
        self.delivered = 0
        self.misses = 0
        self.released_before = 0
        self.dropped_for_credit = 0
        self.intervals = SlidingWindow(WINDOW)
        self.responses = SlidingWindow(WINDOW)
        self.queues = SlidingWindow(WINDOW)

    def _new_pacer(self) -> Pacer:
        config = self.config
        return Pacer(
            PacerConfig(
                period_s=self.period_s,
                expected_response_s=config.expected_response_s,
                margin_s=config.margin_s,
                max_action_age_s=config.max_action_age_s,
                hold=config.hold,
            )
        )

    def begin_epoch(self, epoch: int) -> None:
        """Begin anew, with nothing of before."""
        self._clear(epoch)
        if self.keeps is not None:
            self.keeps.forget()

    def suspend(self, now_s: float, reason: str) -> None:
        """Stand still after a loss, in a new epoch.

        What was seen still holds, and is used again where the loss took what was made of it: in
        lockstep somebody waits for that.
        """
        newest = self.injector.newest()
        owed = bool(self.finished) or any(not chunk.exited for chunk in self.on_way.values())
        self._clear(self.epoch + 1)
        if newest is not None:
            seen, seen_s = newest
            self.injector.offer(seen, seen_s)
            self.stamps[seen.number] = (seen.stamp, seen.entry_s)
            if owed:
                self.used_number = 0
        self.suspended = Suspension(lost_s=now_s, reason=reason)

    def _clear(self, epoch: int) -> None:
        self.epoch = epoch
        self.injector.restart()
        self.pacer = self._new_pacer()
        self.next_seq = 0
        self.on_way.clear()
        self.stamps.clear()
        self.finished.clear()
        self.used_number = self.newest_number
        self.last_exit_s = math.nan

    def forget_old_stamps(self) -> None:
        """Keep what chunks on their way may have touched: newer than the oldest one's first."""
        if len(self.stamps) <= 2 * MAX_TOUCHES + 4 * self.max_in_flight:
            return
        oldest = min((c.entry_s for c in self.on_way.values()), default=math.inf)
        self.stamps = {
            number: kept
            for number, kept in self.stamps.items()
            if kept[1] >= oldest or number == self.newest_number
        }

    def complete(self, message: ChunkExit) -> FinishedChunk | None:
        """A chunk reached the exit: account for it; it waits in `finished` for the pacer."""
        chunk = self.on_way.get(message.seq)
        if chunk is None:
            return None
        chunk.exited = True
        self.last_completed = (self.epoch, chunk.chunk_id)
        exit_s = message.exit_s
        self.pacer.completed(chunk.chunk_id, exit_s)
        if not math.isnan(self.last_exit_s):
            self.intervals.add(exit_s - self.last_exit_s)
        self.last_exit_s = exit_s
        self.responses.add(exit_s - chunk.entry_s)
        done = FinishedChunk(
            stream_id=self.config.stream_id,
            epoch=self.epoch,
            chunk_id=chunk.chunk_id,
            outputs=message.outputs,
            observations=tuple(self.stamps[number][0] for number in message.touches),
            release_s=chunk.release_s,
            entry_s=chunk.entry_s,
            exit_s=exit_s,
            deadline_s=chunk.deadline_s,
            delivered_s=math.nan,
        )
        if done.missed:
            self.misses += 1
        self.finished[chunk.chunk_id] = done
        return done

    def figures(self) -> StreamFigures:
        pacing = self.pacer.state()
        return StreamFigures(
            stream_id=self.config.stream_id,
            state=self.state,
            reason=self.reason if self.suspended is None else self.suspended.reason,
            suspended=self.suspended is not None,
            epoch=self.epoch,
            released=self.injector.released,
            delivered=self.delivered,
            dropped=self.injector.dropped,
            superseded=self.injector.superseded,
            in_flight=self.injector.in_flight,
            misses=self.misses,
            buffer_depth_s=pacing.depth_s,
            pacer_capped=pacing.capped,
            interval_s=self.intervals.percentiles(),
            response_s=self.responses.percentiles(),
            queue_s=self.queues.percentiles(),
        )
