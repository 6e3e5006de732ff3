"""Questions to workers, and answers that some of them never give."""

from __future__ import annotations

import math
import threading

import numpy as np

from physis_core.clock import VirtualClock
from physis_core.cluster.messages import (
    CloseStream,
    Done,
    GetStats,
    Opening,
    RestoreWindow,
    ResumeStream,
)
from physis_core.cluster.worker_group import REQUEST_S, WorkerGroup, first_reason


class Workers:
    """A cluster that only remembers what was sent."""

    def __init__(self, count):
        self.sent = []
        self.failures = []
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


def group_of(count, clock=None):
    workers = Workers(count)
    return workers, WorkerGroup(workers, clock or VirtualClock(), workers.failures.append)


def answer(group, worker, message, reason=""):
    group.answered(worker, Done(request=message.request, reason=reason))


def restore(stage, saved=None):
    return RestoreWindow(stream=1, epoch=0, stage=stage, saved=saved or {})


def test_a_question_ends_when_all_have_answered():
    workers, group = group_of(3)
    ends = []
    group.ask(CloseStream(stream=1), ends.append)
    for worker, message in workers.sent[:2]:
        answer(group, worker, message)
    assert not ends
    answer(group, *workers.sent[2], reason="no")
    assert set(ends[0]) == {0, 1, 2}
    assert first_reason(ends[0]) == "no"


def test_only_those_that_are_named_are_asked():
    workers, group = group_of(3)
    ends = []
    opening = Opening(
        stream=1,
        route=0,
        epoch=1,
        seed=0,
        refresh="entry",
        priority=0,
        conditions=[],
        block_s=[],
    )
    group.ask(ResumeStream(opening=opening), ends.append, [2])
    ((worker, message),) = workers.sent
    assert worker == 2
    answer(group, worker, message)
    assert set(ends[0]) == {2}


def test_a_lost_worker_is_waited_for_no_longer():
    workers, group = group_of(2)
    ends = []
    group.ask(CloseStream(stream=1), ends.append)
    group.lose(1)
    assert not ends
    answer(group, *workers.sent[0])
    assert set(ends[0]) == {0}


def test_parcels_are_answered_one_by_one_and_end_together():
    workers, group = group_of(2)
    ends = []
    arrays = {"x": np.arange(3)}
    parcels = [(w, restore(s, arrays)) for s, w in enumerate((0, 1, 1))]
    group.deliver(parcels, ends.append)
    workers.until(3)
    for worker, message in workers.sent:
        assert message.saved["x"] is arrays["x"]
        answer(group, worker, message)
    (answers,) = ends
    assert set(answers) == {0, 1, 2}


def test_parcels_to_a_worker_that_dies_are_missing_among_the_answers():
    workers, group = group_of(2)
    ends = []
    group.deliver([(w, restore(0)) for w in (0, 1)], ends.append)
    workers.until(2)
    answer(group, *next(sent for sent in workers.sent if sent[0] == 0))
    group.lose(1)
    assert set(ends[0]) == {0}


def test_nothing_to_deliver_is_delivered_at_once():
    _, group = group_of(1)
    ends = []
    group.deliver([], ends.append)
    assert ends == [{}]


def test_a_thread_that_cannot_send_its_parcels_says_so(eventually):
    workers, group = group_of(1)

    def broken(worker, message):
        raise TypeError("cannot be sent")

    workers.send_large = broken
    group.deliver([(0, restore(0))], print)
    eventually(lambda: workers.failures)
    assert workers.failures == ["thread physis-parcels: TypeError: cannot be sent"]


def test_a_worker_that_does_not_answer_in_time_has_refused():
    clock = VirtualClock()
    workers, group = group_of(3, clock)
    ends, stats = [], []
    group.ask(CloseStream(stream=1), ends.append, [0, 2])
    group.ask(GetStats(full=False, asked_s=0.0), stats.append, [1], limit_s=1.0)
    answer(group, *workers.sent[0])
    assert group.expire() == 1.0
    clock.advance_to(1.0)
    assert group.expire() == REQUEST_S
    assert first_reason(stats[0]) == "worker 1 did not answer in 1 s"
    assert not ends
    clock.advance_to(REQUEST_S)
    assert group.expire() == math.inf
    assert set(ends[0]) == {0, 2}
    assert first_reason(ends[0]) == f"worker 2 did not answer in {REQUEST_S:g} s"
    # An answer that comes later is nobody's.
    answer(group, *workers.sent[1])
    assert len(ends) == len(stats) == 1
