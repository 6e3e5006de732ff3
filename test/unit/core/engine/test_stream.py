"""A stream at the front over a loss: what it drops, and what still holds."""

from __future__ import annotations

import numpy as np
import pytest

from physis_core.cluster.messages import ChunkExit
from physis_core.engine.rebuild import PastChunks
from physis_core.engine.stream import OnItsWay, Seen, Stream, StreamConfig
from physis_core.types import ObservationStamp


def seen(number):
    stamp = ObservationStamp(
        observation_id=number, capture_oldest_ns=0, capture_newest_ns=0, receipt_ns=0
    )
    return Seen(number=number, stamp=stamp, entry_s=float(number), tensors={"x": np.zeros(1)})


@pytest.fixture
def stream():
    """In lockstep, with chunk 0 on its way."""
    one = Stream(StreamConfig(stream_id="s", release="on_observation"), 1, 4, 2)
    first = seen(1)
    one.injector.offer(first, first.entry_s)
    one.newest_number = first.number
    one.stamps[first.number] = (first.stamp, first.entry_s)
    release = one.injector.poll(1.5)
    deadline_s = one.pacer.released(release.chunk_id, release.release_s, 0.0)
    one.used_number = 1
    one.next_seq = 1
    one.on_way[0] = OnItsWay(
        seq=0, chunk_id=0, release_s=1.5, entry_s=1.0, deadline_s=deadline_s, version=0
    )
    return one


def exit_of(seq):
    return ChunkExit(stream=1, epoch=0, seq=seq, exit_s=2.0, touches=[1], outputs={})


def test_after_a_loss_the_owed_chunk_is_made_again(stream):
    stream.suspend(3.0, "worker 1 is lost")
    assert stream.epoch == 1
    assert stream.suspended.lost_s == 3.0
    assert not stream.on_way
    assert stream.injector.in_flight == 0
    assert stream.used_number != stream.newest_number
    assert stream.injector.poll(4.0).observation.number == 1
    assert stream.stamps[1][1] == 1.0
    assert stream.figures().suspended
    assert stream.figures().reason == "worker 1 is lost"


def test_a_chunk_that_exited_and_was_not_delivered_is_owed_too(stream):
    stream.complete(exit_of(0))
    stream.suspend(3.0, "")
    assert stream.used_number != stream.newest_number


def test_what_was_delivered_is_not_made_twice(stream):
    stream.complete(exit_of(0))
    stream.finished.clear()
    stream.suspend(3.0, "")
    assert stream.used_number == stream.newest_number
    assert stream.last_completed == (0, 0)


def test_a_restart_that_was_asked_for_keeps_nothing(stream):
    stream.keeps = PastChunks(4, 1)
    stream.keeps.add({})
    stream.begin_epoch(1)
    assert stream.keeps.kept() == []
    assert stream.injector.newest() is None


def test_a_loss_keeps_what_the_way_back_needs(stream):
    stream.keeps = PastChunks(4, 1)
    stream.keeps.add({})
    stream.suspend(3.0, "")
    assert len(stream.keeps.kept()) == 1
