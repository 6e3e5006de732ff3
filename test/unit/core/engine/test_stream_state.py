"""A stream at the engine: its states, what it drops at a loss, and what still holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.cluster.messages import ChunkExit
from physis_core.engine.chunk_flow import Conditions, Flight, FlyingChunk, Seen
from physis_core.engine.stream import StreamConfig
from physis_core.engine.stream_state import (
    CLOSED,
    DRAINING,
    FAILED,
    LEGAL,
    LIVE,
    OPEN,
    OPENING,
    RESUMING,
    SUSPENDED,
    Stream,
)
from physis_core.engine.way_back import ComingBack, PastChunks
from physis_core.types import ObservationStamp, StreamState


def seen(number):
    stamp = ObservationStamp(
        observation_id=number, capture_oldest_ns=0, capture_newest_ns=0, receipt_ns=0
    )
    return Seen(number=number, stamp=stamp, entry_s=float(number), tensors={"x": np.zeros(1)})


def new_stream(**config):
    return Stream(
        StreamConfig(**{"stream_id": "s", "release": "on_observation", **config}), 1, 4, 2
    )


@pytest.fixture
def stream():
    """In lockstep, with chunk 0 in flight."""
    one = new_stream()
    one.move(OPEN)
    assert one.offer(seen(1))
    (release,) = one.schedule(1.5)
    assert (release.seq, release.chunk, release.number, release.sent_s) == (0, 0, 1, 1.5)
    assert not list(one.schedule(1.6))
    return one


def exit_of(seq, touches=(1,)):
    return ChunkExit(stream=1, epoch=0, seq=seq, exit_s=2.0, touches=touches, outputs={})


def back_of(stream, chunks=0):
    return ComingBack(
        epoch=stream.epoch, attempt=1, lost_s=3.0, whole_s=4.0, ready_s=4.0, chunks=chunks
    )


def test_after_a_loss_the_owed_chunk_is_made_again(stream):
    stream.suspend(3.0, "worker 1 is lost")
    assert stream.state is SUSPENDED
    assert stream.epoch == 1
    assert stream.way_back.suspension.lost_s == 3.0
    assert not stream.flight.chunks
    assert stream.entry.injector.in_flight == 0
    assert stream.figures(0.0).suspended
    assert stream.figures(0.0).reason == "worker 1 is lost"
    assert not list(stream.schedule(3.5))
    stream.resume()
    assert not list(stream.schedule(3.5))
    stream.go_on(back_of(stream), 5.0)
    (release,) = stream.schedule(4.0)
    assert (release.epoch, release.seq, release.number) == (1, 0, 1)
    assert stream.flight.stamps([1]) is not None


def test_a_chunk_that_exited_and_was_not_delivered_is_owed_too(stream):
    assert stream.complete(exit_of(0)) == ""
    stream.suspend(3.0, "")
    assert not stream.entry.waits_for_news


def test_what_was_delivered_is_not_made_twice(stream):
    assert stream.complete(exit_of(0)) == ""
    stream.exit.finished.clear()
    stream.suspend(3.0, "")
    assert stream.entry.waits_for_news
    assert stream.exit.last_completed == (0, 0)


def test_a_restart_that_was_asked_for_keeps_nothing(stream):
    stream.way_back.keeps = PastChunks(4, 1)
    stream.way_back.keeps.add({})
    stream.begin_epoch()
    assert stream.epoch == 1
    assert stream.way_back.keeps.kept() == []
    assert stream.entry.injector.newest() is None


def test_a_loss_keeps_what_the_way_back_needs(stream):
    stream.way_back.keeps = PastChunks(4, 1)
    stream.way_back.keeps.add({})
    stream.suspend(3.0, "")
    assert len(stream.way_back.keeps.kept()) == 1


def test_past_chunks_enter_before_the_new_ones(stream):
    stream.suspend(3.0, "")
    stream.resume()
    stream.go_on(back_of(stream, chunks=3), 5.0)
    entered = [(r.seq, r.chunk, r.number) for r in stream.schedule(4.0)]
    assert entered == [(0, -3, 0), (1, -2, 0), (2, -1, 0), (3, 0, 1)]


def test_a_restart_while_it_comes_back_begins_the_return_anew(stream):
    stream.suspend(3.0, "")
    attempt = stream.resume()
    stream.begin_epoch()
    assert stream.state is SUSPENDED
    assert stream.resume() > attempt


def test_a_chunk_that_names_an_unknown_observation_is_not_taken(stream):
    assert "names observations [7]" in stream.complete(exit_of(0, touches=[7]))
    assert not stream.exit.finished


def test_who_restarts_the_stream_while_chunks_are_delivered_gets_none_of_the_old(stream):
    assert stream.offer(seen(2))
    assert len(list(stream.schedule(2.0))) == 1
    for seq in (0, 1):
        assert stream.complete(exit_of(seq)) == ""
    due = stream.due(2.0)
    assert next(due).chunk_id == 0
    stream.begin_epoch()
    assert list(due) == []


ACTIONS = {
    "move": lambda s: s.move(OPEN) if s.state is OPENING else None,
    "suspend": lambda s: s.suspend(1.0, "lost") if s.state is OPEN else None,
    "stop": lambda s: s.stop_resuming(),
    "resume": lambda s: s.resume() if s.state is SUSPENDED else None,
    "go_on": lambda s: s.go_on(back_of(s), 2.0) if s.state is RESUMING else None,
    "restart": lambda s: s.begin_epoch() if s.state in LIVE else None,
    "drain": lambda s: s.move(DRAINING) if s.state in LIVE else None,
    "offer": lambda s: s.offer(seen(s.entry.newest_number + 1)),
    "schedule": lambda s: list(s.schedule(s.entry.newest_number + 0.5)),
}


@given(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=30), st.sampled_from([CLOSED, FAILED]))
def test_whatever_happens_a_stream_goes_from_one_legal_state_to_another(actions, end):
    stream = new_stream()
    for name in actions:
        before = stream.state
        ACTIONS[name](stream)
        assert stream.state is before or stream.state in LEGAL[before]
        # What it is waiting for, and what is in flight, belong to its state.
        waits = stream.way_back.suspension is not None
        assert not waits or stream.state in (SUSPENDED, RESUMING, DRAINING)
        assert waits or stream.state not in (SUSPENDED, RESUMING)
        if stream.state in (OPENING, SUSPENDED, RESUMING):
            assert not stream.flight.chunks
    stream.end(end, "over")
    assert stream.state is end
    assert stream.way_back.suspension is None
    assert not list(stream.schedule(99.0))
    assert not stream.offer(seen(99))


@given(st.sampled_from(list(StreamState)), st.sampled_from(list(StreamState)))
def test_no_state_follows_that_is_not_legal(before, after):
    stream = new_stream()
    stream.state = before
    if after in LEGAL[before]:
        stream.move(after)
        assert stream.state is after
    else:
        with pytest.raises(AssertionError, match=f"s: from {before.value} to {after.value}"):
            stream.move(after)


def test_a_condition_is_in_use_once_it_is_accepted():
    conditions = Conditions({"a": 0})
    first, second = conditions.propose({"a": 1}), conditions.propose({"a": 2})
    assert conditions.in_use == 0
    conditions.accept(second)
    conditions.accept(first)
    assert conditions.in_use == second
    assert conditions.known() == [(second, {"a": 2})]
    conditions.refuse(conditions.propose({"b": 1}))
    assert conditions.known() == [(second, {"a": 2})]


def test_stamps_are_kept_as_long_as_a_chunk_in_flight_may_name_them():
    flight = Flight(max_in_flight=1)
    for number in range(1, 200):
        flight.note(seen(number))
        if number == 50:
            flight.chunks[0] = FlyingChunk(
                seq=0, chunk_id=0, release_s=0.0, entry_s=50.0, deadline_s=0.0, version=0
            )
    assert flight.stamps([50, 120, 199]) is not None
    assert flight.stamps([1]) is None
