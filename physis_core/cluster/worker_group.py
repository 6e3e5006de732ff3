"""The workers as the engine asks them: answers awaited together, clocks watched, losses known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from physis_core.clock import Clock
from physis_core.cluster.host_clock import ClockWatch, Exchange
from physis_core.cluster.launcher import Cluster
from physis_core.cluster.messages import Done, Message, Request, ShiftClock, Stats
from physis_core.cluster.threads import start_thread

Answers = dict[int, Done | Stats]
"""By worker; one that was lost meanwhile is missing."""
Finish = Callable[[Answers], None]
Parcel = tuple[int, Request]
"""(worker, what it is to get)."""
REQUEST_S = 60.0
"""A worker that has not answered a request by then has refused it."""


@dataclass(slots=True)
class _Open:
    """A request that some workers have not answered yet."""

    waiting: set[int]
    finish: Finish
    asked_s: float
    limit_s: float
    answers: Answers = field(default_factory=dict)


class WorkerGroup:
    """Owned by the engine's thread.

    Args:
        failed: gets the reason where the thread that sends parcels fails; called in that thread.
    """

    def __init__(self, cluster: Cluster, clock: Clock, failed: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._failed = failed
        self._open: dict[int, _Open] = {}
        self._next = 1
        self._clock_watches: dict[int, ClockWatch] = {}

    def alive(self) -> tuple[int, ...]:
        return self._cluster.alive()

    def send(self, worker: int, message: Message) -> None:
        self._cluster.send(worker, message)

    def ask(
        self,
        request: Request,
        finish: Finish,
        workers: Iterable[int] | None = None,
        limit_s: float = REQUEST_S,
    ) -> None:
        """Ask all living workers, or these; `finish` is called once with their answers.

        For a worker that does not answer within `limit_s` there is a `Done` with that reason.
        """
        asked = self._cluster.alive() if workers is None else tuple(workers)
        number = self._await(set(asked), finish, limit_s)
        for worker in asked:
            self._cluster.send(worker, structs.replace(request, request=number))

    def tell(self, request: Request, workers: Iterable[int]) -> None:
        """Ask these and wait for nobody."""
        self.ask(request, lambda _: None, workers)

    def deliver(self, parcels: Sequence[Parcel], finish: Finish) -> None:
        """Send each parcel to its worker beside this thread, for they may be large.

        `finish` is called once all are answered, with one answer by the number of each parcel, of
        those that were answered at all.
        """
        answers: Answers = {}
        left = len(parcels)
        if left == 0:
            finish(answers)
            return

        def numbered(at: int) -> Finish:
            def answered(one: Answers) -> None:
                nonlocal left
                answers.update((at, message) for message in one.values())
                left -= 1
                if left == 0:
                    finish(answers)

            return answered

        ready = []
        for at, (worker, message) in enumerate(parcels):
            number = self._await({worker}, numbered(at), REQUEST_S)
            ready.append((worker, structs.replace(message, request=number)))

        def send() -> None:
            for worker, message in ready:
                self._cluster.send_large(worker, message)

        start_thread("physis-parcels", send, self._failed)

    def answered(self, worker: int, message: Done | Stats) -> None:
        if isinstance(message, Stats):
            self._watch_clock(worker, message)
        asked = self._open.get(message.request)
        if asked is None:
            return
        asked.answers[worker] = message
        self._heard(message.request, worker)

    def lose(self, worker: int) -> None:
        """Nobody waits for its answers any more."""
        for number in list(self._open):
            self._heard(number, worker)
        # The one that comes after it has told its time anew.
        self._clock_watches.pop(worker, None)

    def expire(self) -> float:
        """End the requests whose time is over. Returns when the next one's is."""
        now_s = self._clock.now_s()
        for number, asked in list(self._open.items()):
            if now_s < asked.asked_s + asked.limit_s:
                continue
            for worker in sorted(asked.waiting):
                reason = f"worker {worker} did not answer in {asked.limit_s:g} s"
                asked.answers[worker] = Done(request=number, reason=reason)
            del self._open[number]
            asked.finish(asked.answers)
        return min((a.asked_s + a.limit_s for a in self._open.values()), default=math.inf)

    def _await(self, workers: set[int], finish: Finish, limit_s: float) -> int:
        number = self._next
        self._next += 1
        if workers:
            self._open[number] = _Open(workers, finish, self._clock.now_s(), limit_s)
        else:
            finish({})
        return number

    def _heard(self, number: int, worker: int) -> None:
        asked = self._open[number]
        asked.waiting.discard(worker)
        if not asked.waiting:
            del self._open[number]
            asked.finish(asked.answers)

    def _watch_clock(self, worker: int, stats: Stats) -> None:
        exchange = Exchange(
            asked_s=stats.asked_s, remote_s=stats.now_s, heard_s=self._clock.now_s()
        )
        watch = self._clock_watches.setdefault(worker, ClockWatch())
        error_s = watch.add(exchange)
        if error_s:
            self._cluster.send(worker, ShiftClock(shift_s=error_s))


def first_reason(answers: Mapping[int, Done | Stats]) -> str:
    """Why the first of those that refused did so; empty where all did as they were asked."""
    for message in answers.values():
        if isinstance(message, Done) and message.reason:
            return message.reason
    return ""
