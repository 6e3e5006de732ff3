"""A stream's chunks at the engine: what goes in, what is in flight, what comes out.

Plain state machines of one stream. Seconds are of the engine's steady clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from physis_core.cluster.messages import ChunkExit
from physis_core.engine.stream import WINDOW, StreamConfig
from physis_core.observe.percentiles import SlidingWindow
from physis_core.pipeline.injector import Injector, InjectorConfig
from physis_core.pipeline.pacer import Pacer, PacerConfig
from physis_core.pipeline.stages import MAX_TOUCHES
from physis_core.types import Array, FinishedChunk, ObservationStamp

_ALLOWANCE = 3.0
_LEAST_ALLOWANCE_S = 1.0
"""See `Exit.allowance_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An observation as the engine keeps it: `number` counts them, `entry_s` is when it entered."""

    number: int
    stamp: ObservationStamp
    entry_s: float
    tensors: Mapping[str, Array]


class Conditions:
    """What a stream is conditioned on, by version, from the one in use on.

    A version is used only once every worker has it: no chunk ever waits for a condition.
    """

    def __init__(self, first: Mapping[str, Any]) -> None:
        self.in_use = 0
        self._newest = 0
        self._by_version: dict[int, Mapping[str, Any]] = {0: first}

    def propose(self, condition: Mapping[str, Any]) -> int:
        """Number a new one, which is not in use yet."""
        self._newest += 1
        self._by_version[self._newest] = condition
        return self._newest

    def accept(self, version: int) -> None:
        """All workers have it: it is used from the next chunk on."""
        self.in_use = max(self.in_use, version)
        for old in [v for v in self._by_version if v < self.in_use]:
            del self._by_version[old]

    def refuse(self, version: int) -> None:
        self._by_version.pop(version, None)

    def known(self) -> list[tuple[int, dict[str, Any]]]:
        """What a worker must know that hears of the stream for the first time."""
        return [(version, dict(condition)) for version, condition in self._by_version.items()]


class Entry:
    """What goes in: when a chunk enters, and with which observation."""

    def __init__(self, config: StreamConfig, max_in_flight: int) -> None:
        self.injector: Injector[Seen] = Injector(
            InjectorConfig(
                period_s=config.paced_s, credits=max_in_flight, max_age_s=config.max_age_s
            )
        )
        self.newest_number = 0
        self.used_number = 0
        self.next_s = math.inf
        """When the injector wants to be asked again."""
        self.dropped_for_credit = 0
        """Chunks since the last look that found too many in flight."""
        self.queues = SlidingWindow(WINDOW)

    @property
    def waits_for_news(self) -> bool:
        """Whether the newest observation has had its chunk."""
        return self.used_number == self.newest_number

    def clear(self) -> None:
        self.injector.restart()
        self.used_number = self.newest_number
        self.next_s = math.inf


@dataclass(slots=True, kw_only=True)
class FlyingChunk:
    """A chunk between release and retirement. `exited`: finished; with clean KV it goes on."""

    seq: int
    chunk_id: int
    release_s: float
    entry_s: float
    deadline_s: float
    version: int
    exited: bool = False


class Flight:
    """What is in flight, and the stamps of the observations that it may have touched."""

    def __init__(self, max_in_flight: int) -> None:
        self.next_seq = 0
        self.chunks: dict[int, FlyingChunk] = {}
        self._stamps: dict[int, tuple[ObservationStamp, float]] = {}
        self._most_stamps = 2 * MAX_TOUCHES + 4 * max_in_flight

    def take_seq(self) -> int:
        seq = self.next_seq
        self.next_seq += 1
        return seq

    @property
    def unfinished(self) -> bool:
        return any(not chunk.exited for chunk in self.chunks.values())

    def overdue_s(self, now_s: float, allowance_s: float) -> float:
        """How long the most belated unfinished chunk is past the time by which it should be done:
        its deadline, or `allowance_s` after its release where it has none. 0: none is.
        """
        late_s = 0.0
        for chunk in self.chunks.values():
            if not chunk.exited:
                due_s = min(chunk.deadline_s, chunk.release_s + allowance_s)
                late_s = max(late_s, now_s - due_s)
        return late_s

    def oldest_version(self, in_use: int) -> int:
        """The oldest condition that a chunk in flight, or the next one, runs under."""
        return min((chunk.version for chunk in self.chunks.values()), default=in_use)

    def note(self, seen: Seen) -> None:
        """Remember a stamp; forget those that no chunk in flight can have touched."""
        self._stamps[seen.number] = (seen.stamp, seen.entry_s)
        if len(self._stamps) <= self._most_stamps:
            return
        oldest_s = min((chunk.entry_s for chunk in self.chunks.values()), default=math.inf)
        self._stamps = {
            number: kept
            for number, kept in self._stamps.items()
            if kept[1] >= oldest_s or number == seen.number
        }

    def stamps(self, touches: Sequence[int]) -> tuple[ObservationStamp, ...] | None:
        """Of these observations; None where one of them is unknown."""
        if any(number not in self._stamps for number in touches):
            return None
        return tuple(self._stamps[number][0] for number in touches)

    def clear(self) -> None:
        self.next_seq = 0
        self.chunks.clear()
        self._stamps.clear()


class Exit:
    """What comes out: finished chunks until the pacer lets them go, and their figures."""

    def __init__(self, config: StreamConfig) -> None:
        self._config = config
        self.pacer = self._new_pacer()
        self.finished: dict[int, FinishedChunk] = {}
        self.last_completed: tuple[int, int] | None = None
        """(epoch, chunk id)."""
        self.delivered = 0
        self.misses = 0
        self.intervals = SlidingWindow(WINDOW)
        self.responses = SlidingWindow(WINDOW)
        self._last_exit_s = math.nan

    def complete(
        self,
        chunk: FlyingChunk,
        message: ChunkExit,
        stream_id: str,
        stamps: tuple[ObservationStamp, ...],
    ) -> None:
        """Account for a chunk that was completed; it waits in `finished` for the pacer."""
        exit_s = message.exit_s
        chunk.exited = True
        self.last_completed = (message.epoch, chunk.chunk_id)
        self.pacer.completed(chunk.chunk_id, exit_s)
        if not math.isnan(self._last_exit_s):
            self.intervals.add(exit_s - self._last_exit_s)
        self._last_exit_s = exit_s
        self.responses.add(exit_s - chunk.entry_s)
        done = FinishedChunk(
            stream_id=stream_id,
            epoch=message.epoch,
            chunk_id=chunk.chunk_id,
            outputs=message.outputs,
            observations=stamps,
            release_s=chunk.release_s,
            entry_s=chunk.entry_s,
            exit_s=exit_s,
            deadline_s=chunk.deadline_s,
            delivered_s=math.nan,
        )
        if done.missed:
            self.misses += 1
        self.finished[chunk.chunk_id] = done

    @property
    def allowance_s(self) -> float:
        """How long a chunk without a deadline may take: what most took, several times over."""
        if self._config.paced_s is not None:
            return math.inf
        known_s = self.pacer.response_p99_s
        expected_s = self._config.expected_response_s if math.isnan(known_s) else known_s
        return max(_LEAST_ALLOWANCE_S, _ALLOWANCE * expected_s)

    @property
    def empty(self) -> bool:
        """Whether no finished chunk waits to be delivered."""
        return self.pacer.next_due_s() == math.inf

    def clear(self) -> None:
        self.pacer = self._new_pacer()
        self.finished.clear()
        self._last_exit_s = math.nan

    def _new_pacer(self) -> Pacer:
        config = self._config
        return Pacer(
            PacerConfig(
                period_s=config.paced_s,
                expected_response_s=config.expected_response_s,
                margin_s=config.margin_s,
                max_action_age_s=config.max_action_age_s,
                hold=config.hold,
            )
        )
