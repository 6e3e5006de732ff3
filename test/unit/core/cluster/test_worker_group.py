"""Questions to workers, and answers that some of them never give."""

from __future__ import annotations

import threading

import numpy as np

from physis_core.clock import VirtualClock
from physis_core.cluster.messages import Message
from physis_core.cluster.worker_group import Crew, first_reason


class Workers:
    """A cluster that only remembers what was sent."""

    def __init__(self, count):
        self.sent = []
        self.news = threading.Condition()
        self._count = count

    def alive(self):
        return tuple(range(self._count))

    def send(self, worker, message):
        with self.news:
            self.sent.append((worker, message))
            self.news.notify_all()

    send_large = send

    def until(self, count):
        with self.news:
            assert self.news.wait_for(lambda: len(self.sent) >= count, 30.0)


def crew_of(count):
    workers = Workers(count)
    return workers, Crew(workers, VirtualClock())


def answer(crew, worker, message, reason=""):
    number = message.fields["request"]
    crew.answered(worker, Message("done", {"request": number, "reason": reason}))


def test_a_question_ends_when_all_have_answered():
    workers, crew = crew_of(3)
    ends = []
    crew.ask("close", {"stream": 1}, ends.append)
    for worker, message in workers.sent[:2]:
        answer(crew, worker, message)
    assert not ends
    answer(crew, *workers.sent[2], reason="no")
    assert set(ends[0]) == {0, 1, 2}
    assert first_reason(ends[0]) == "no"


def test_only_those_that_are_named_are_asked():
    workers, crew = crew_of(3)
    ends = []
    crew.ask("resume", {}, ends.append, [2])
    ((worker, message),) = workers.sent
    assert worker == 2
    answer(crew, worker, message)
    assert set(ends[0]) == {2}


def test_a_lost_worker_is_waited_for_no_longer():
    workers, crew = crew_of(2)
    ends = []
    crew.ask("close", {}, ends.append)
    crew.lose(1)
    assert not ends
    answer(crew, *workers.sent[0])
    assert set(ends[0]) == {0}


def test_parcels_are_answered_one_by_one_and_end_together():
    workers, crew = crew_of(2)
    ends = []
    arrays = {"x": np.arange(3)}
    parcels = [(w, Message("restore", {"stage": s}, arrays)) for s, w in enumerate((0, 1, 1))]
    crew.deliver(parcels, ends.append)
    workers.until(3)
    for worker, message in workers.sent:
        assert message.arrays["x"] is arrays["x"]
        answer(crew, worker, message)
    (answers,) = ends
    assert set(answers) == {0, 1, 2}


def test_parcels_to_a_worker_that_dies_are_missing_among_the_answers():
    workers, crew = crew_of(2)
    ends = []
    crew.deliver([(w, Message("restore", {})) for w in (0, 1)], ends.append)
    workers.until(2)
    answer(crew, *next(sent for sent in workers.sent if sent[0] == 0))
    crew.lose(1)
    assert set(ends[0]) == {0}


def test_nothing_to_deliver_is_delivered_at_once():
    _, crew = crew_of(1)
    ends = []
    crew.deliver([], ends.append)
    assert ends == [{}]
