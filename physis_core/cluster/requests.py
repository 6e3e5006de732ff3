"""Questions to several workers whose answers are awaited together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from physis_core.cluster.messages import Message

Finish = Callable[[dict[int, Message]], None]


@dataclass(slots=True)
class _Open:
    waiting: set[int]
    finish: Finish
    answers: dict[int, Message] = field(default_factory=dict)


class Requests:
    """Calls `finish` with all answers once nobody is waited for. A lost worker answers nothing."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._next = 1

    def new(self, workers: set[int], finish: Finish) -> int:
        number = self._next
        self._next += 1
        if workers:
            self._open[number] = _Open(workers, finish)
        else:
            finish({})
        return number

    def answer(self, worker: int, message: Message) -> None:
        number = message.fields["request"]
        request = self._open.get(number)
        if request is None:
            return
        request.answers[worker] = message
        self._heard(number, worker)

    def lost(self, worker: int) -> None:
        for number in list(self._open):
            self._heard(number, worker)

    def _heard(self, number: int, worker: int) -> None:
        request = self._open[number]
        request.waiting.discard(worker)
        if not request.waiting:
            del self._open[number]
            request.finish(request.answers)
