"""One stream at the engine: its state, its chunks, and what a loss can be made good with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from physis_core.cluster.messages import ChunkExit, Release
from physis_core.engine.chunk_flow import Conditions, Entry, Exit, Flight, FlyingChunk, Seen
from physis_core.engine.stream import StreamConfig, StreamFigures
from physis_core.engine.way_back import ComingBack, PastChunks, SnapshotShelf
from physis_core.pipeline.injector import ReleaseChunk, SkipRelease
from physis_core.pipeline.ready_task import BACKGROUND_S
from physis_core.pipeline.stages import MAX_TOUCHES
from physis_core.types import FinishedChunk, StreamState, UserError

OPENING, OPEN = StreamState.OPENING, StreamState.OPEN
SUSPENDED, RESUMING = StreamState.SUSPENDED, StreamState.RESUMING
DRAINING, CLOSED, FAILED = StreamState.DRAINING, StreamState.CLOSED, StreamState.FAILED

LEGAL: dict[StreamState, frozenset[StreamState]] = {
    OPENING: frozenset({OPEN, CLOSED, FAILED}),
    OPEN: frozenset({SUSPENDED, DRAINING, CLOSED, FAILED}),
    SUSPENDED: frozenset({RESUMING, DRAINING, CLOSED, FAILED}),
    RESUMING: frozenset({OPEN, SUSPENDED, DRAINING, CLOSED, FAILED}),
    DRAINING: frozenset({CLOSED, FAILED}),
    CLOSED: frozenset(),
    FAILED: frozenset(),
}
"""From each state to which others."""
_OVERDUE_S = 1.0
"""A chunk that is later than this is said to be stuck."""
LIVE = frozenset({OPEN, SUSPENDED, RESUMING})
"""States in which observations are taken, and a restart means something."""


@dataclass(slots=True, kw_only=True)
class Suspension:
    """A stream that stands still since a loss, until its route is whole and its KV is back.

    `attempt` counts the beginnings of its return: answers to an older one are void. `later` is done
    when the stream goes on, or ends.
    """

    lost_s: float
    reason: str
    attempt: int = 0
    later: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class WayBack:
    """What a loss can be made good with, and how far that has come.

    `past` are chunks of the past that still have to run again, `past_deadline_s` theirs.
    """

    keeps: SnapshotShelf | PastChunks | None = None
    suspension: Suspension | None = None
    coming_back: ComingBack | None = None
    past: int = 0
    past_deadline_s: float = 0.0


class Stream:
    """Owned by the engine's thread. Seconds are of the engine's steady clock."""

    def __init__(
        self,
        config: StreamConfig,
        handle: int,
        max_in_flight: int,
        passes: int,
        keeps: SnapshotShelf | PastChunks | None = None,
    ) -> None:
        if config.refresh == "every_step" and passes > MAX_TOUCHES:
            raise UserError("refresh", config.refresh, f"at most {MAX_TOUCHES} steps")
        self.config = config
        self.handle = handle
        self.epoch = 0
        self.state = OPENING
        self.reason = ""
        self.conditions = Conditions(config.condition)
        self.entry = Entry(config, max_in_flight)
        self.flight = Flight(max_in_flight)
        self.exit = Exit(config)
        self.way_back = WayBack(keeps)
        self.when_closed: list[Future[bool]] = []
        self.overdue = ""
        """What the last look found: why a chunk in flight counts as stuck."""

    # -- its state --------------------------------------------------------------------------------

    def move(self, state: StreamState) -> None:
        """Raises AssertionError where the state does not follow from the one before."""
        if state not in LEGAL[self.state]:
            raise AssertionError(
                f"{self.config.stream_id}: from {self.state.value} to {state.value}"
            )
        self.state = state

    def begin_epoch(self) -> None:
        """Begin anew, with nothing of before. A return from a loss begins anew as well."""
        self._clear()
        if self.way_back.keeps is not None:
            self.way_back.keeps.forget()
        self.stop_resuming()

    def stop_resuming(self) -> None:
        """Where it was coming back, that is void."""
        suspension = self.way_back.suspension
        if suspension is not None:
            suspension.attempt += 1
            if self.state is RESUMING:
                self.move(SUSPENDED)

    def suspend(self, now_s: float, reason: str) -> None:
        """Stand still after a loss, in a new epoch.

        What was seen still holds, and is used again where the loss took what was made of it: in
        lockstep somebody waits for that.
        """
        self.move(SUSPENDED)
        newest = self.entry.injector.newest()
        owed = bool(self.exit.finished) or self.flight.unfinished
        self._clear()
        if newest is not None:
            seen, seen_s = newest
            self.entry.injector.offer(seen, seen_s)
            self.flight.note(seen)
            if owed:
                self.entry.used_number = 0
        if isinstance(self.way_back.keeps, SnapshotShelf):
            self.way_back.keeps.drop_open()
        self.way_back.suspension = Suspension(lost_s=now_s, reason=reason)

    def resume(self) -> int:
        """Its route is whole: begin the return. Returns the number of this attempt."""
        suspension = self.way_back.suspension
        assert suspension is not None, "only a suspended stream comes back"
        self.move(RESUMING)
        suspension.attempt += 1
        return suspension.attempt

    def go_on(self, back: ComingBack, past_deadline_s: float) -> list[Callable[[], None]]:
        """Its KV is back, or comes with the past chunks that run first.

        Returns what waited for that.
        """
        suspension = self.way_back.suspension
        assert suspension is not None, "only a suspended stream goes on"
        self.move(OPEN)
        self.way_back.suspension = None
        self.way_back.coming_back = back
        self.way_back.past, self.way_back.past_deadline_s = back.chunks, past_deadline_s
        return suspension.later

    def end(self, state: StreamState, reason: str) -> list[Callable[[], None]]:
        """CLOSED or FAILED, for `reason`. Returns what waited for its return."""
        self.move(state)
        self.reason = reason
        suspension, self.way_back.suspension = self.way_back.suspension, None
        return suspension.later if suspension is not None else []

    def _clear(self) -> None:
        self.epoch += 1
        self.entry.clear()
        self.flight.clear()
        self.exit.clear()
        self.way_back.coming_back = None
        self.way_back.past = 0

    # -- its chunks -------------------------------------------------------------------------------

    def offer(self, seen: Seen) -> bool:
        """Take an observation into the mailbox. False: it changes nothing."""
        if self.state not in LIVE or not self.entry.injector.offer(seen, seen.entry_s):
            return False
        self.entry.newest_number = seen.number
        self.flight.note(seen)
        return True

    def schedule(self, now_s: float) -> Iterator[Release | SkipRelease]:
        """Chunks that enter now, and those that are left out."""
        self.entry.next_s = math.inf
        if self.state is not OPEN:
            return
        past, self.way_back.past = self.way_back.past, 0
        for number in range(-past, 0):
            yield self._past_release(number, now_s)
        lockstep = self.config.release == "on_observation"
        while not (lockstep and self.entry.waits_for_news):
            step = self.entry.injector.poll(now_s)
            if isinstance(step, ReleaseChunk):
                yield self._release(step, now_s)
            elif isinstance(step, SkipRelease):
                if step.reason == "too many chunks in flight":
                    self.entry.dropped_for_credit += step.count
                yield step
            else:
                self.entry.next_s = step.time_s
                return

    def _release(self, step: ReleaseChunk[Seen], now_s: float) -> Release:
        seen = step.observation
        deadline_s = self.exit.pacer.released(
            step.chunk_id, step.release_s, step.release_s - seen.entry_s
        )
        self.entry.used_number = seen.number
        self.entry.queues.add(now_s - seen.entry_s)
        seq, version = self.flight.take_seq(), self.conditions.in_use
        self.flight.chunks[seq] = FlyingChunk(
            seq=seq,
            chunk_id=step.chunk_id,
            release_s=step.release_s,
            entry_s=seen.entry_s,
            deadline_s=deadline_s,
            version=version,
        )
        return Release(
            stream=self.handle,
            epoch=self.epoch,
            seq=seq,
            chunk=step.chunk_id,
            version=version,
            number=seen.number,
            deadline_s=min(deadline_s, step.release_s + BACKGROUND_S),
            release_s=step.release_s,
            entry_s=seen.entry_s,
            sent_s=now_s,
            observation=seen.tensors,
        )

    def _past_release(self, number: int, now_s: float) -> Release:
        return Release(
            stream=self.handle,
            epoch=self.epoch,
            seq=self.flight.take_seq(),
            chunk=number,
            version=self.conditions.in_use,
            number=0,
            deadline_s=self.way_back.past_deadline_s,
            release_s=now_s,
            entry_s=now_s,
            sent_s=now_s,
        )

    def complete(self, message: ChunkExit) -> str:
        """A chunk reached the exit. Returns why it cannot be; empty where it was taken."""
        chunk = self.flight.chunks.get(message.seq)
        if chunk is None:
            return ""
        stamps = self.flight.stamps(message.touches)
        if not stamps:
            return f"chunk {chunk.chunk_id} names observations {list(message.touches)}"
        self.exit.complete(chunk, message, self.config.stream_id, stamps)
        return ""

    def retired(self, seq: int) -> None:
        """A chunk left the pipeline: its place comes back."""
        if self.flight.chunks.pop(seq, None) is not None:
            self.entry.injector.finished()

    def due(self, now_s: float) -> Iterator[FinishedChunk]:
        """Finished chunks that the pacer lets go now."""
        epoch = self.epoch
        for delivery in self.exit.pacer.due(now_s):
            if self.epoch != epoch:
                # Whoever got the last one has restarted the stream.
                return
            self.exit.delivered += 1
            yield self.exit.finished.pop(delivery.chunk_id)

    @property
    def drained(self) -> bool:
        return self.state is DRAINING and not self.flight.chunks and self.exit.empty

    def next_s(self) -> float:
        """When something is due, if nothing comes in."""
        return min(self.entry.next_s, self.exit.pacer.next_due_s())

    def overdue_s(self, now_s: float) -> float:
        """See `StreamFigures`. A stream that stands still has nothing in flight."""
        return self.flight.overdue_s(now_s, self.exit.allowance_s)

    def watch(self, now_s: float) -> bool:
        """Look for a stuck chunk. True: one became overdue since the last look."""
        late_s, before = self.overdue_s(now_s), self.overdue
        self.overdue = f"a chunk is overdue by {late_s:.1f} s" if late_s > _OVERDUE_S else ""
        return bool(self.overdue) and not before

    @property
    def trouble(self) -> str:
        """Why no chunk comes; empty where they do."""
        suspension = self.way_back.suspension
        return self.overdue if suspension is None else suspension.reason

    def figures(self, now_s: float) -> StreamFigures:
        suspension = self.way_back.suspension
        injector = self.entry.injector
        return StreamFigures(
            stream_id=self.config.stream_id,
            state=self.state,
            reason=self.reason if suspension is None else suspension.reason,
            epoch=self.epoch,
            released=injector.released,
            delivered=self.exit.delivered,
            dropped=injector.dropped,
            superseded=injector.superseded,
            in_flight=injector.in_flight,
            misses=self.exit.misses,
            overdue_s=self.overdue_s(now_s),
            interval_s=self.exit.intervals.percentiles(),
            response_s=self.exit.responses.percentiles(),
            queue_s=self.entry.queues.percentiles(),
        )
