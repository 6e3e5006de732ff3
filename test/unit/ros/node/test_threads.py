"""Threads of a node: the fixed-rate loop and its timing, and the thread that acts on request."""

from __future__ import annotations

import threading

import pytest

from physis_ros.node.threads import LoopTiming, OnDemandThread


def test_lateness_is_jitter_and_whole_periods_are_lost_ticks():
    timing = LoopTiming(period_s=0.01, window=10)
    due = timing.tick(1.0, 1.0)
    assert due == pytest.approx(1.01)
    due = timing.tick(1.013, due)
    assert due == pytest.approx(1.02)
    due = timing.tick(1.0451, due)
    assert due == pytest.approx(1.05)
    assert timing.lost == 2
    assert timing.ticks == 3
    assert timing.jitter_ms().max == pytest.approx(25.1)
    assert timing.jitter_ms().p50 == pytest.approx(3.0)


def test_an_early_wake_up_is_no_jitter():
    timing = LoopTiming(period_s=0.01, window=10)
    timing.tick(0.999, 1.0)
    assert timing.jitter_ms().max == 0.0


LIMIT_S = 20.0


def test_it_acts_once_more_for_all_that_was_asked_meanwhile():
    began, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def act():
        began.release()
        assert go_on.acquire(timeout=LIMIT_S)

    thread = OnDemandThread("on demand", act, failed=lambda error: None)
    thread.start()
    thread.request()
    assert began.acquire(timeout=LIMIT_S)
    for _ in range(3):
        thread.request()
    go_on.release()
    assert began.acquire(timeout=LIMIT_S)
    go_on.release()
    thread.stop()
    assert not began.acquire(blocking=False)


def test_an_error_is_handed_on():
    failed, seen = threading.Event(), []

    def act():
        raise ValueError("no")

    def take(error):
        seen.append(str(error))
        failed.set()

    thread = OnDemandThread("on demand", act, take)
    thread.start()
    thread.request()
    assert failed.wait(LIMIT_S)
    thread.stop()
    assert seen == ["no"]
