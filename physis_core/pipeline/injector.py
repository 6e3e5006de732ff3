"""When a chunk enters the pipeline, and with which observation.

A state machine: events and `now` in, plain data out. Chunk c is due at r_0 + c*period and takes the
newest observation of a mailbox. A chunk that cannot enter within its period (no observation that is
fresh enough, or too many chunks in flight) is dropped: its id is never used, so the reader sees the
gap, and nothing queues up silently. Without a period (free running) chunks enter as fast as credits
and observations allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from physis_core.types import UserError

T = TypeVar("T")
SkipReason = Literal["observation too old", "too many chunks in flight", "late"]
_SLACK = 1e-9
"""Relative rounding allowance: a timer that fires exactly on time is not a hair too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectorConfig:
    """How a stream enters.

    `period_s` None: free running. `credits`: most chunks in flight. `max_age_s`: age of the oldest
    observation that may still be used.
    """

    period_s: float | None
    credits: int
    max_age_s: float = math.inf

    def __post_init__(self) -> None:
        if self.period_s is not None and not 0.0 < self.period_s < math.inf:
            raise UserError("period_s", self.period_s, "must be positive and finite")
        if self.credits < 1:
            raise UserError("credits", self.credits, "must be at least 1")
        if not self.max_age_s > 0.0:
            raise UserError("max_age_s", self.max_age_s, "must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseChunk(Generic[T]):
    """Let this chunk in now. `release_s` is its nominal time r_c, which may be a little past."""

    chunk_id: int
    release_s: float
    observation: T
    observation_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRelease:
    """`count` chunk ids from `chunk_id` on are dropped for `reason`."""

    chunk_id: int
    count: int
    reason: SkipReason


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitFor:
    """Nothing to do before `time_s` (infinite: before the next event), for want of `reason`."""

    time_s: float
    reason: Literal["period", "credit", "observation"]


class Injector(Generic[T]):
    """One stream's way in. Call `offer` and `finished` as things happen, and `poll` until it says
    WaitFor.

    All times are seconds of one steady clock. Not thread-safe: one owner.
    """

    def __init__(self, config: InjectorConfig) -> None:
        self._config = config
        self._start_s: float | None = None
        self._next = 0
        self._in_flight = 0
        self._starving = False
        self._mail: T | None = None
        self._mail_s = -math.inf
        self.released = 0
        self.dropped = 0
        self.superseded = 0
        """Observations that a newer one replaced before any chunk used them."""
        self._mail_used = True

    @property
    def config(self) -> InjectorConfig:
        return self._config

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def next_chunk_id(self) -> int:
        return self._next

    def offer(self, observation: T, observation_s: float) -> bool:
        """Put an observation into the mailbox. False where it is older than the one already
        there.
        """
        if observation_s < self._mail_s:
            return False
        if not self._mail_used:
            self.superseded += 1
        self._mail, self._mail_s, self._mail_used = observation, observation_s, False
        return True

    def newest(self) -> tuple[T, float] | None:
        """The mailbox as it is, for `refresh: every_step`."""
        if self._mail_s == -math.inf:
            return None
        return self._mail, self._mail_s  # type: ignore[return-value]

    def finished(self, count: int = 1) -> None:
        """`count` chunks left the pipeline, finished or cancelled: their credits come back."""
        if count > self._in_flight:
            raise ValueError(f"count: {count!r}: only {self._in_flight} chunks are in flight")
        self._in_flight -= count

    def restart(self) -> None:
        """A new epoch: ids from 0, nothing in flight, an empty mailbox."""
        self._start_s = None
        self._next = self._in_flight = 0
        self._starving = False
        self._mail, self._mail_s, self._mail_used = None, -math.inf, True

    def due_s(self, chunk_id: int) -> float:
        """Nominal release time r_0 + c*period. Only with a period, and after the first
        observation.
        """
        if self._start_s is None or self._config.period_s is None:
            raise ValueError("no schedule yet")
        return self._start_s + chunk_id * self._config.period_s

    def poll(self, now_s: float) -> ReleaseChunk[T] | SkipRelease | WaitFor:
        """The next thing to do at `now_s`. Call again until it is WaitFor."""
        if self._mail_s == -math.inf:
            return WaitFor(time_s=math.inf, reason="observation")
        if self._config.period_s is None:
            return self._poll_free(now_s)
        if self._start_s is None:
            self._start_s = now_s
        return self._poll_periodic(now_s, self._config.period_s)

    def _poll_free(self, now_s: float) -> ReleaseChunk[T] | WaitFor:
        if self._in_flight >= self._config.credits:
            return WaitFor(time_s=math.inf, reason="credit")
        if now_s - self._mail_s > self._config.max_age_s:
            return WaitFor(time_s=math.inf, reason="observation")
        return self._release(now_s)

    def _poll_periodic(
        self, now_s: float, period_s: float
    ) -> ReleaseChunk[T] | SkipRelease | WaitFor:
        due_s = self.due_s(self._next)
        if now_s < due_s - period_s * _SLACK:
            return WaitFor(time_s=due_s, reason="period")
        starved = self._in_flight >= self._config.credits
        # Whole periods that passed: their chunks can no longer enter in their own time.
        passed = math.floor((now_s - due_s) / period_s + _SLACK)
        if passed >= 1:
            full = starved or self._starving
            return self._skip(passed, "too many chunks in flight" if full else "late")
        if now_s - self._mail_s > self._config.max_age_s:
            return self._skip(1, "observation too old")
        if starved:
            self._starving = True
            return WaitFor(time_s=due_s + period_s, reason="credit")
        return self._release(due_s)

    def _release(self, release_s: float) -> ReleaseChunk[T]:
        chunk_id = self._next
        self._next += 1
        self._starving = False
        self._in_flight += 1
        self.released += 1
        self._mail_used = True
        return ReleaseChunk(
            chunk_id=chunk_id,
            release_s=release_s,
            observation=self._mail,  # type: ignore[arg-type]
            observation_s=self._mail_s,
        )

    def _skip(self, count: int, reason: SkipReason) -> SkipRelease:
        chunk_id = self._next
        self._next += count
        self.dropped += count
        return SkipRelease(chunk_id=chunk_id, count=count, reason=reason)
