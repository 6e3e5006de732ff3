"""The workers as the front asks them: answers awaited together, clocks watched, losses known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from physis_core.clock import Clock
from physis_core.runtime.cluster import Cluster
from physis_core.runtime.control import Message
from physis_core.runtime.host_clock import ClockWatch, Exchange
from physis_core.runtime.requests import Requests

Answers = dict[int, Message]
"""By worker; one that was lost meanwhile is missing."""


class Crew:
    """Owned by the engine's thread. `lost` are the workers that nothing may be asked of."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.lost: set[int] = set()
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
    ) -> None:
        """Ask all living workers; `finish` is called once with their answers."""
        workers = self._cluster.alive()
        number = self._requests.new(set(workers), finish)
        fields = {**fields, "asked_s": self._clock.now_s()}
        for worker in workers:
            self._cluster.send(worker, Message(kind, {**fields, "request": number}))

    def broadcast(self, kind: str, fields: dict[str, Any]) -> None:
        self.ask(kind, fields, lambda _: None)

    def answered(self, worker: int, message: Message) -> None:
        if message.kind == "stats":
            self._watch_clock(worker, message.fields)
        self._requests.answer(worker, message)

    def lose(self, worker: int) -> None:
        self.lost.add(worker)
        self._requests.lost(worker)

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
