"""The workers as the front asks them: answers awaited together, clocks watched, losses known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from physis_core.clock import Clock
from physis_core.cluster.host_clock import ClockWatch, Exchange
from physis_core.cluster.launcher import Cluster
from physis_core.cluster.messages import Message
from physis_core.cluster.requests import Requests

Answers = dict[int, Message]
"""By worker; one that was lost meanwhile is missing."""
Parcel = tuple[int, Message]
"""(worker, what it is to get)."""


class Crew:
    """Owned by the engine's thread."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._requests = Requests()
        self._clock_watches: dict[int, ClockWatch] = {}

    def alive(self) -> tuple[int, ...]:
        return self._cluster.alive()

    def send(self, worker: int, message: Message) -> None:
        self._cluster.send(worker, message)

    def ask(
        self,
        kind: str,
        fields: dict[str, Any],
        finish: Callable[[Answers], None],
        workers: Iterable[int] | None = None,
    ) -> None:
        """Ask all living workers, or these; `finish` is called once with their answers."""
        workers = self._cluster.alive() if workers is None else tuple(workers)
        number = self._requests.new(set(workers), finish)
        fields = {**fields, "asked_s": self._clock.now_s()}
        for worker in workers:
            self._cluster.send(worker, Message(kind, {**fields, "request": number}))

    def deliver(self, parcels: Sequence[Parcel], finish: Callable[[Answers], None]) -> None:
        """Send each parcel to its worker beside this thread, for they may be large.

        `finish` is called once all are answered, with one answer by the number of each parcel, of
        those that were answered at all.
        """
        answers: Answers = {}
        left = len(parcels)
        if left == 0:
            finish(answers)
            return

        def numbered(at: int) -> Callable[[Answers], None]:
            def answered(one: Answers) -> None:
                nonlocal left
                answers.update((at, message) for message in one.values())
                left -= 1
                if left == 0:
                    finish(answers)

            return answered

        ready = []
        for at, (worker, message) in enumerate(parcels):
            number = self._requests.new({worker}, numbered(at))
            fields = {**message.fields, "request": number}
            ready.append((worker, Message(message.kind, fields, message.arrays)))

        def send() -> None:
            for worker, message in ready:
                self._cluster.send_large(worker, message)

        threading.Thread(target=send, name="physis-parcels", daemon=True).start()

    def broadcast(self, kind: str, fields: dict[str, Any]) -> None:
        self.ask(kind, fields, lambda _: None)

    def answered(self, worker: int, message: Message) -> None:
        if message.kind == "stats":
            self._watch_clock(worker, message.fields)
        self._requests.answer(worker, message)

    def lose(self, worker: int) -> None:
        """Nobody waits for its answers any more."""
        self._requests.lost(worker)
        # The one that comes after it has told its time anew.
        self._clock_watches.pop(worker, None)

    def _watch_clock(self, worker: int, fields: Mapping[str, Any]) -> None:
        exchange = Exchange(
            asked_s=fields["asked_s"], remote_s=fields["now_s"], heard_s=self._clock.now_s()
        )
        watch = self._clock_watches.setdefault(worker, ClockWatch())
        error_s = watch.add(exchange)
        if error_s:
            self._cluster.send(worker, Message("clock", {"shift_s": error_s}))


def first_reason(answers: Mapping[int, Message]) -> str:
    for message in answers.values():
        if message.fields["reason"]:
            return str(message.fields["reason"])
    return ""
