"""An engine never fails in silence: callers, streams, status and events all tell of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from physis_core.cluster.launcher import ThreadCluster
from physis_core.cluster.listener import KeyListener
from physis_core.cluster.processes import ProcessCluster
from physis_core.cluster.spawner import Spawner
from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.engine import Engine, EngineFailedError, make_cluster
from physis_core.engine.stream import StreamConfig, StreamHandle
from physis_core.types import Observation, ObservationStamp, Refused, StreamState, UserError

PATIENCE_S = 60.0
STAMP = ObservationStamp(observation_id=1, capture_oldest_ns=1, capture_newest_ns=1, receipt_ns=1)


def observation():
    return Observation(stamp=STAMP, tensors={"state": np.zeros(4, np.float32)})


class Failing:
    """An engine with one open stream, whose callbacks raise when they are told to."""

    def __init__(self, ref, **options):
        self.events = []
        self.chunk_fault = self.event_fault = None
        self.engine = Engine(
            simple_deployment(ref, **options), on_chunk=self._chunk, on_event=self._event
        )

    def _chunk(self, chunk):
        if self.chunk_fault is not None:
            raise self.chunk_fault

    def _event(self, event):
        self.events.append(event)
        if self.event_fault is not None:
            raise self.event_fault

    def __enter__(self):
        self.engine.start(PATIENCE_S)
        opened = self.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        assert isinstance(opened, StreamHandle)
        return self

    def __exit__(self, *_):
        self.engine.close()


def assert_failed(engine, words):
    """Whoever asks in whatever way hears the reason."""
    status = engine.status()
    assert not status.running
    assert words in status.failure
    assert [(s.stream_id, s.state) for s in status.streams] == [("a", StreamState.FAILED)]
    assert words in status.streams[0].reason
    refused = engine.observe("a", observation())
    assert isinstance(refused, Refused)
    assert words in refused.reason
    for ask in (
        lambda: engine.open_stream(StreamConfig(stream_id="b", release="free")),
        lambda: engine.set_condition("a", {}),
        lambda: engine.restart_stream("a", "test"),
        lambda: engine.close_stream("a"),
        engine.worker_stats,
        engine.trace,
    ):
        with pytest.raises(EngineFailedError, match=words):
            ask()
    beat = engine.beat
    threading.Event().wait(0.2)
    assert engine.beat == beat


def test_a_chunk_callback_that_raises_once_fails_the_engine(synthetic, eventually):
    with Failing(synthetic()) as run:
        run.chunk_fault = ValueError("nobody\ntakes this")
        run.engine.observe("a", observation())
        eventually(lambda: run.engine.failure)
        run.chunk_fault = None
        assert run.engine.failure == "the engine failed: ValueError: nobody takes this"
        eventually(lambda: run.events[-1].kind == "engine_failed")
        assert_failed(run.engine, "nobody takes this")


def test_an_event_callback_that_raises_fails_the_engine(synthetic, eventually):
    with Failing(synthetic()) as run:
        run.event_fault = ValueError("no more news")
        run.engine.restart_stream("a", "test")
        eventually(lambda: run.engine.failure)
        assert_failed(run.engine, "no more news")


def test_who_waits_when_the_engine_fails_gets_the_error(synthetic, emulated_costs, eventually):
    """Two callers wait for a worker that is busy for an hour."""
    with Failing(synthetic()) as run, ThreadPoolExecutor(2) as callers:
        run.engine._loop.cluster.send = lambda worker, message: None
        waiting = [
            callers.submit(run.engine.set_condition, "a", {}, 3600.0),
            callers.submit(run.engine.close_stream, "a", True, 3600.0),
        ]
        eventually(lambda: len(run.engine._loop._waiting) == 2)
        run.engine._loop._inbox.append((0, "no message at all"))
        run.engine._loop._on_event = run._event
        run.event_fault = RuntimeError("the end")
        for one in waiting:
            with pytest.raises(EngineFailedError, match="the end"):
                one.result(PATIENCE_S)


def test_an_admission_that_raises_fails_the_engine_and_the_first_reason_is_told(
    synthetic, eventually
):
    class Admission:
        def admit(self, config):
            return None

        def leave(self, config):
            raise LookupError("was never here")

    engine = Engine(simple_deployment(synthetic()), on_chunk=print, admission=Admission())
    with engine:
        engine.start(PATIENCE_S)
        engine.open_stream(StreamConfig(stream_id="a", release="free"))
        with pytest.raises(EngineFailedError, match="was never here"):
            engine.close_stream("a")
        assert "was never here" in engine.failure


def test_a_closed_engine_says_so_to_who_asks_later(synthetic):
    with Failing(synthetic()) as run:
        pass
    assert not run.engine.status().running
    assert run.engine.failure == ""
    with pytest.raises(EngineFailedError, match="the engine is closed"):
        run.engine.set_condition("a", {})


def test_a_loop_that_has_nothing_to_do_beats(synthetic):
    with Failing(synthetic()) as run:
        before = run.engine.beat
        threading.Event().wait(0.5)
        assert run.engine.beat >= before + 5


def test_a_stream_that_failed_alone_says_why(synthetic, watch, monkeypatch):
    from physis_core.model.synthetic.model import SyntheticModel

    def picky(self, observation, noise):
        raise RuntimeError("cannot take this")

    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        monkeypatch.setattr(SyntheticModel, "inject", picky)
        seen.observe("a")
        seen.until(lambda: any(e.kind == "stream_failed" for e in seen.events))
        refused = seen.engine.observe("a", observation())
        assert "cannot take this" in refused.reason
        assert seen.engine.status().running


# Threads of the engine's side ------------------------------------------------------------------


def broken(*_, **__):
    raise OSError("broken on purpose")


def test_a_worker_thread_that_dies_loses_its_worker(synthetic, watch, monkeypatch):
    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        monkeypatch.setattr(seen.engine._loop.cluster._loop, "_obey", broken)
        seen.observe("a")
        seen.until(lambda: any(e.kind == "stream_failed" for e in seen.events))
        (lost,) = [e for e in seen.events if e.kind == "worker_lost"]
        assert "thread physis-worker: OSError: broken on purpose" in lost.reason


@pytest.fixture
def two_workers(synthetic):
    return simple_deployment(synthetic(), partition="block", devices=2, workers=2)


def test_a_thread_that_reads_a_worker_and_dies_loses_that_worker(watch, two_workers):
    with watch(two_workers) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.engine._loop.cluster._channels[1].receive = broken
        seen.observe("a")
        seen.until(lambda: any(e.kind == "stream_failed" for e in seen.events))
        (lost,) = [e for e in seen.events if e.kind == "worker_lost"]
        assert lost.worker == 1
        assert "its receiving thread failed: OSError: broken on purpose" in lost.reason


def test_a_message_that_does_not_decode_is_refused_and_the_engine_goes_on(watch, two_workers):
    with watch(two_workers) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        channel = seen.engine._loop.cluster._channels[1]
        decode, garbled = channel._decoder.decode, [b"w" + b"garbage"]

        def sometimes(frame, start=0):
            return decode(garbled.pop(), 1) if garbled else decode(frame, start)

        channel._decoder.decode = sometimes
        seen.until(lambda: any(e.kind == "message_refused" for e in seen.events))
        (refused,) = [e for e in seen.events if e.kind == "message_refused"]
        assert refused.worker == 1
        seen.observe("a")
        seen.until_chunks("a", 3)


def test_a_worker_refuses_what_it_cannot_read_and_goes_on(watch, two_workers):
    with watch(two_workers) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.engine._loop.cluster._channels[0]._send([b"w", b"garbage"])
        seen.until(lambda: any(e.kind == "message_refused" for e in seen.events))
        (refused,) = [e for e in seen.events if e.kind == "message_refused"]
        assert refused.worker == 0
        seen.observe("a")
        seen.until_chunks("a", 3)


@pytest.mark.parametrize(("owner", "inside"), [(KeyListener, "_accept"), (Spawner, "_interpreter")])
def test_a_thread_that_starts_workers_and_dies_ends_the_start(
    two_workers, monkeypatch, owner, inside
):
    monkeypatch.setattr(owner, inside, broken)
    engine = Engine(two_workers, on_chunk=print)
    with pytest.raises(RuntimeError, match="thread physis-.*: OSError: broken on purpose"):
        engine.start(PATIENCE_S)


def test_a_thread_that_all_workers_need_and_dies_later_fails_the_engine(watch, two_workers):
    with watch(two_workers) as seen:
        seen.engine._loop.cluster._fail("thread physis-accept: OSError: broken on purpose")
        seen.until(lambda: any(e.kind == "engine_failed" for e in seen.events))
        assert "physis-accept" in seen.engine.failure


def test_a_worker_that_cannot_be_started_anew_is_lost_again(synthetic, watch, monkeypatch):
    deployment = simple_deployment(
        synthetic(), partition="block", devices=2, workers=2, recovery="rebuild", respawns=1
    )
    with watch(deployment) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        monkeypatch.setattr(ProcessCluster, "_watch", broken)
        monkeypatch.setattr(
            "physis_core.cluster.spawner.WORKER", "physis_core.no_such_module_at_all"
        )
        seen.engine._loop.cluster.kill(1)
        seen.until(lambda: any(e.kind == "worker_given_up" for e in seen.events))
        reasons = [e.reason for e in seen.events if e.kind == "worker_lost"]
        assert any("thread physis-watch: OSError: broken on purpose" in r for r in reasons)


def test_parcels_that_cannot_be_sent_fail_the_engine(synthetic, watch, monkeypatch):
    deployment = simple_deployment(
        synthetic(), partition="block", devices=2, workers=2, recovery="rebuild"
    )
    with watch(deployment) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until_chunks("a", 3)
        monkeypatch.setattr(ProcessCluster, "send_large", broken)
        seen.engine._loop.cluster.kill(1)
        seen.until(lambda: any(e.kind == "engine_failed" for e in seen.events))
        assert "thread physis-parcels: OSError: broken on purpose" in seen.engine.failure


# What callers give -----------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 2])
def test_ordinary_numbers_and_arrays_of_numpy_are_taken(synthetic, watch, processes):
    deployment = simple_deployment(synthetic(), partition="block", devices=2, workers=processes)
    with watch(deployment) as seen:
        opened = seen.engine.open_stream(
            StreamConfig(
                stream_id="a",
                period_s=np.float32(0.05),
                seed=np.int64(3),
                priority=np.int8(1),
                route=np.uint8(0),
                max_in_flight=np.int32(3),
                hold=np.bool_(False),
                condition={"bias": np.float32(0.5)},
            )
        )
        assert isinstance(opened, StreamHandle), opened
        seen.observe("a")
        seen.until_chunks("a", 3)
        assert seen.engine.set_condition("a", {"bias": np.float64(0.25)}) is None
        refused = seen.engine.set_condition("a", {"bias": np.zeros(3)})
        # The model's own word: it takes a number, and was asked.
        assert refused is None or "bias" in refused.reason
        seen.until_chunks("a", 6)
        assert not [e for e in seen.events if e.kind in ("stream_failed", "engine_failed")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seed": 1.5}, "seed: 1.5: must be a whole number"),
        ({"seed": True}, "seed: True: must be a whole number"),
        ({"route": "0"}, "route: '0': must be a whole number"),
        ({"period_s": "0.1"}, "period_s: '0.1': must be a number"),
        ({"priority": 2**40}, "priority: 1099511627776"),
        ({"hold": "no"}, "hold: 'no': must be true or false"),
        ({"max_age_s": None}, "max_age_s: None: must be a number"),
        ({"stream_id": 7}, "stream_id: 7"),
        ({"condition": [1]}, "condition: .1.: must be a mapping"),
        ({"condition": {"x": {"y": {1, 2}}}}, "condition.x.y: .1, 2.: cannot be sent"),
        ({"condition": {"x": [0, object()]}}, r"condition.x\[1\]: .* cannot be sent"),
        ({"condition": {"x": np.array(["a"])}}, "condition.x: .*must hold numbers"),
        ({"condition": {"x": 2**70}}, "condition.x: .*must fit 64 bits"),
        ({"condition": {3: 1}}, "condition: 3: names must be text"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_field(fields, words):
    with pytest.raises(UserError, match=words):
        StreamConfig(**{"stream_id": "a", "period_s": 0.1, **fields})


def test_a_condition_that_cannot_be_sent_is_refused_and_stops_nobody(synthetic, watch):
    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        refused = seen.engine.set_condition("a", {"bias": object()})
        assert "condition.bias" in refused.reason
        seen.observe("a")
        seen.until_chunks("a", 3)


def test_arrays_and_tensors_of_a_condition_are_copies():
    given = np.zeros(3)
    config = StreamConfig(
        stream_id="a",
        release="free",
        condition={"x": given, "y": [torch.ones(2, dtype=torch.bfloat16)], "z": (1, None)},
    )
    given[:] = 1.0
    np.testing.assert_array_equal(config.condition["x"], np.zeros(3))
    assert config.condition["y"][0].dtype == np.float32
    assert config.condition["z"] == [1, None]


def test_a_deployment_without_processes_is_one_thread(synthetic):
    assert isinstance(make_cluster(simple_deployment(synthetic()), print), ThreadCluster)
