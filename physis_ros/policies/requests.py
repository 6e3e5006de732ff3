"""Which observation is sent when and where, and which request a reply belongs to. Pure.

A state machine: events and `now` in, plain data out; one owner. The newest observation wins. Each
connection answers its requests in order unless a reply names its request. A reply to a request that
was overtaken by a newer reply, or that was sent before a restart, is dropped and counted. Requests
of a lost connection are forgotten; their chunk ids stay gaps.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from physis_core.pipeline.injector import Injector, InjectorConfig, ReleaseChunk, SkipRelease
from physis_core.pipeline.pacer import Pacer, PacerConfig

T = TypeVar("T")
_NO_LIMIT = 1_000_000
"""The places of the connections are the limit, not the injector's credits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestConfig:
    """`max_age_s`: an observation older than this since its entry starts no request. `timeout_s`: a
    request older than this ends its connection; `first_timeout_s`: the first one of a connection,
    for a server that still compiles. The rest as for the engine's pacer."""

    period_s: float
    max_age_s: float
    timeout_s: float
    first_timeout_s: float
    expected_response_s: float
    margin_s: float
    max_action_age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """A request to send on `connection`. Times in steady seconds; `request_id` counts for ever."""

    request_id: int
    connection: int
    generation: int
    chunk_id: int
    observation: T
    entry_s: float
    release_s: float
    sent_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A reply that is not used, and why."""

    reason: str


@dataclass(slots=True)
class _Place(Generic[T]):
    """A connection that is up. `waiting`: its requests in the order in which they were sent."""

    in_flight: int
    waiting: deque[Request[T]]
    answered: bool = False


class Requests(Generic[T]):
    """One stream's requests. Call `poll` until it gives None, after every event."""

    def __init__(self, config: RequestConfig) -> None:
        self._config = config
        self._injector = self._new_injector()
        self._pacer = self._new_pacer()
        self._places: dict[int, _Place[T]] = {}
        self._wait_s = math.inf
        self._full = True
        self._next_id = 0
        self._generation = 0
        self._newest_answered = -1
        self.sent = 0
        self.answered = 0
        self.stale = 0
        self.refused = 0
        self.lost_requests = 0
        self.misses = 0
        self._dropped_before = 0

    @property
    def in_flight(self) -> int:
        return sum(len(place.waiting) for place in self._places.values())

    @property
    def dropped(self) -> int:
        """Chunk ids that no request was sent for."""
        return self._dropped_before + self._injector.dropped

    @property
    def connected(self) -> int:
        return len(self._places)

    def offer(self, observation: T, entry_s: float) -> None:
        """A new observation; an older one that was not sent is forgotten."""
        self._injector.offer(observation, entry_s)

    def connect(self, connection: int, in_flight: int) -> None:
        """It is up and takes this many requests at the same time."""
        self._places[connection] = _Place(max(1, in_flight), deque())

    def lose(self, connection: int) -> bool:
        """It is down, with its requests. True where it was the last: the stream starts anew."""
        place = self._places.pop(connection, None)
        if place is None:
            return False
        self.lost_requests += len(place.waiting)
        for request in place.waiting:
            self._cancel(request)
        return not self._places

    def restart(self) -> None:
        """A new epoch: chunk ids from 0, no observation. Replies under way are dropped."""
        self._generation += 1
        self._newest_answered = -1
        self._dropped_before += self._injector.dropped
        self._injector = self._new_injector()
        self._pacer = self._new_pacer()

    def poll(self, now_s: float) -> Request[T] | None:
        """The next request to send now; None: nothing before `next_s`, or before an event."""
        while True:
            free = [
                (len(place.waiting), connection)
                for connection, place in self._places.items()
                if len(place.waiting) < place.in_flight
            ]
            self._full = not free
            if self._full:
                return None
            found = self._injector.poll(now_s)
            if isinstance(found, SkipRelease):
                continue
            if not isinstance(found, ReleaseChunk):
                self._wait_s = found.time_s
                return None
            return self._send(found, min(free)[1], now_s)

    def next_s(self) -> float:
        """When to poll again, or to look for what is overdue, if nothing happens before."""
        times = [self._limit_s(place) for place in self._places.values() if place.waiting]
        return min(times, default=math.inf) if self._full else min([*times, self._wait_s])

    def overdue(self, now_s: float) -> list[int]:
        """Connections whose oldest request waits for too long."""
        return [
            connection
            for connection, place in self._places.items()
            if place.waiting and now_s >= self._limit_s(place)
        ]

    def answer(self, connection: int, request_id: int | None, now_s: float) -> Request[T] | Dropped:
        """A reply came: the request that it answers, or why it is not used."""
        request = self._take(connection, request_id)
        if request is None:
            self.stale += 1
            return Dropped(reason=f"a reply to the unknown request {request_id}")
        if request.generation != self._generation:
            self.stale += 1
            return Dropped(reason="a reply from before the restart")
        if request.chunk_id < self._newest_answered:
            self.stale += 1
            self._cancel(request)
            return Dropped(reason=f"request {request.request_id} was overtaken by a newer reply")
        self._newest_answered = request.chunk_id
        self.answered += 1
        self._pacer.completed(request.chunk_id, now_s)
        self._pacer.due(now_s)
        if now_s > request.deadline_s:
            self.misses += 1
        return request

    def refuse(self, connection: int) -> None:
        """The oldest request of the connection was answered by an error."""
        request = self._take(connection, None)
        if request is not None:
            self.refused += 1
            self._cancel(request)

    def _take(self, connection: int, request_id: int | None) -> Request[T] | None:
        place = self._places.get(connection)
        if place is None or not place.waiting:
            return None
        place.answered = True
        if request_id is None:
            return place.waiting.popleft()
        for request in place.waiting:
            if request.request_id == request_id:
                place.waiting.remove(request)
                return request
        return None

    def _send(self, release: ReleaseChunk[T], connection: int, now_s: float) -> Request[T]:
        age_s = max(0.0, now_s - release.observation_s)
        deadline_s = self._pacer.released(release.chunk_id, release.release_s, age_s)
        request = Request(
            request_id=self._next_id,
            connection=connection,
            generation=self._generation,
            chunk_id=release.chunk_id,
            observation=release.observation,
            entry_s=release.observation_s,
            release_s=release.release_s,
            sent_s=now_s,
            deadline_s=deadline_s,
        )
        self._next_id += 1
        self.sent += 1
        self._places[connection].waiting.append(request)
        return request

    def _cancel(self, request: Request[T]) -> None:
        if request.generation == self._generation:
            self._pacer.cancelled(request.chunk_id)

    def _limit_s(self, place: _Place[T]) -> float:
        config = self._config
        allowed_s = config.timeout_s if place.answered else config.first_timeout_s
        return place.waiting[0].sent_s + allowed_s

    def _new_injector(self) -> Injector[T]:
        config = self._config
        return Injector(
            InjectorConfig(period_s=config.period_s, credits=_NO_LIMIT, max_age_s=config.max_age_s)
        )

    def _new_pacer(self) -> Pacer:
        config = self._config
        return Pacer(
            PacerConfig(
                period_s=config.period_s,
                expected_response_s=config.expected_response_s,
                margin_s=config.margin_s,
                max_action_age_s=config.max_action_age_s,
                hold=False,
            )
        )


def retry_s(failures: int, *, first_s: float = 0.25, longest_s: float = 5.0) -> float:
    """How long to wait before the attempt that follows `failures` (from 1) in a row."""
    return float(min(longest_s, first_s * 2.0 ** min(failures - 1, 30)))
