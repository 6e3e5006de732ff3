"""What the engine's tests do not reach: a device that computes while the loop goes on, and how a
worker ends when one of its threads fails.
"""

from __future__ import annotations

import threading
import time

import pytest
import torch

from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import ChunkExit, Done, Opening, OpenStream, Stop
from physis_core.cluster.threads import start_thread
from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.stream import StreamConfig
from physis_core.model.loading import load_spec
from physis_core.worker.executors import EXECUTORS, CudaExecutor
from physis_core.worker.loop import WorkerFault, WorkerLoop
from physis_core.worker.model_runner import ModelRunner
from physis_core.worker.warmup import build_devices

PATIENCE_S = 60.0


class Later:
    """Reached a while after it was asked for, as a GPU's event is."""

    def __init__(self, fails=False):
        self._due_s = time.monotonic() + 1e-3
        self._fails = fails

    def query(self):
        if self._fails:
            raise RuntimeError("the device is gone")
        return time.monotonic() >= self._due_s


class Polled(CudaExecutor):
    """A CPU that is asked for its end like a GPU."""

    def _event(self):
        return Later()


class Failing(CudaExecutor):
    def _event(self):
        return Later(fails=True)


def test_a_device_that_is_polled_gives_the_same_chunks(watch, synthetic, monkeypatch):
    monkeypatch.setitem(EXECUTORS, "cpu", Polled)
    ref = synthetic(steps=2, blocks=3)
    with watch(simple_deployment(ref, partition="stage", devices=6)) as seen:
        for seed, name in enumerate("ab"):
            seen.engine.open_stream(StreamConfig(stream_id=name, release="free", seed=seed))
            seen.observe(name)
        for name in "ab":
            seen.until_chunks(name, 10)
        # Devices overlap: while one is at work the loop serves the others.
        tasks = seen.tasks()
        first, second = (tasks[tasks["device"] == d] for d in (0, 1))
        assert any(
            ((second["start_s"] < t["end_s"]) & (second["end_s"] > t["start_s"])).any()
            for t in first
        )
        for seed, name in enumerate("ab"):
            seen.assert_equal_to_reference(name, seed=seed)


def test_streams_survive_restarts_while_their_chunks_are_on_a_polled_device(
    watch, synthetic, monkeypatch
):
    monkeypatch.setitem(EXECUTORS, "cpu", Polled)
    with watch(simple_deployment(synthetic(), partition="block", devices=4)) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free", seed=2))
        for epoch in range(5):
            seen.observe("a")
            seen.until_chunks("a", 3, epoch)
            seen.assert_equal_to_reference("a", seed=2, epoch=epoch)
            seen.engine.restart_stream("a", "test")


def test_a_device_that_fails_afterwards_ends_the_streams_on_it(watch, synthetic, monkeypatch):
    monkeypatch.setitem(EXECUTORS, "cpu", Failing)
    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until(lambda: any(e.kind == "stream_failed" for e in seen.events))
        (failed,) = [e for e in seen.events if e.kind == "stream_failed"]
        assert "the device is gone" in failed.reason


class Edge:
    """Where the chunks come from: takes credits."""

    def __init__(self):
        self.credits = []

    def give_credit(self, stream, epoch, stage):
        self.credits.append((stream, epoch, stage))

    def flush(self):
        pass

    def close(self):
        pass


class SecondWorker:
    """The second of two stages on a loop in a thread of its own, with one open stream."""

    def __init__(self, ref, in_flight, **options):
        self._in_flight = in_flight
        deployment = simple_deployment(ref, partition="block", devices=2, workers=2, **options)
        self.news = threading.Condition()
        self.replies = []
        devices, _ = build_devices(deployment, 1)
        self.loop = WorkerLoop(
            deployment, devices, reply=self._reply, reply_large=self._reply, clock=HostClock()
        )
        self.spec = load_spec(ref)
        self.edge = Edge()
        self.loop.links.put((0, 1), self.edge, 0)
        self.ended = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        opening = Opening(
            stream=1,
            route=0,
            epoch=0,
            seed=0,
            refresh="entry",
            priority=0,
            conditions=[(0, {})],
            block_s=[1e-3, 1e-3],
        )
        self.loop.post("message", OpenStream(request=1, opening=opening))
        self.until(Done)

    def _run(self):
        try:
            self.loop.run()
        except (ArithmeticError, WorkerFault) as error:
            self.ended = error

    def _reply(self, message):
        with self.news:
            self.replies.append(message)
            self.news.notify_all()
        return True

    def until(self, kind, count=1):
        with self.news:
            assert self.news.wait_for(
                lambda: len([m for m in self.replies if isinstance(m, kind)]) >= count, PATIENCE_S
            )

    def chunk(self, number):
        payload = tuple(torch.zeros(1, *part.shape) for part in self.spec.hidden)
        return self._in_flight(number, stage=1, payload=payload)

    def asleep(self):
        """Wait until the loop has nothing to do and its thread sleeps."""
        while self.loop.inbox or self.loop._lock.locked():
            time.sleep(1e-4)

    def stop(self):
        self.loop.post("message", Stop())
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def seen_threads(monkeypatch):
    """Which thread computed each batch."""
    threads = []
    run = ModelRunner.run

    def noted(self, tasks, streams):
        threads.append(threading.get_ident())
        return run(self, tasks, streams)

    monkeypatch.setattr(ModelRunner, "run", noted)
    return threads


def test_a_chunk_that_finds_the_loop_asleep_is_computed_by_the_thread_that_brings_it(
    synthetic, seen_threads, in_flight
):
    worker = SecondWorker(synthetic(steps=1, blocks=2), in_flight)
    seen_threads.clear()
    for number in range(5):
        worker.asleep()
        worker.loop.deliver(worker.chunk(number))
        # No event to wait for: it was computed before `deliver` returned.
        assert len([m for m in worker.replies if isinstance(m, ChunkExit)]) == number + 1
    worker.stop()
    assert seen_threads == [threading.get_ident()] * 5
    assert worker.edge.credits == [(1, 0, 1)] * 5


def test_a_thread_that_brings_two_chunks_computes_one_and_wakes_the_loop_for_the_other(
    synthetic, seen_threads, in_flight
):
    worker = SecondWorker(synthetic(steps=1, blocks=2), in_flight, max_batch=1)
    seen_threads.clear()
    worker.asleep()
    worker.loop.inbox.append(("chunk", worker.chunk(0)))
    worker.loop.deliver(worker.chunk(1))
    worker.until(ChunkExit, 2)
    worker.stop()
    assert seen_threads == [threading.get_ident(), worker.thread.ident]


def test_where_threads_work_together_only_the_loop_computes(synthetic, seen_threads, in_flight):
    worker = SecondWorker(synthetic(steps=1, blocks=2), in_flight, threads=2)
    seen_threads.clear()
    worker.asleep()
    worker.loop.deliver(worker.chunk(0))
    worker.until(ChunkExit)
    worker.stop()
    assert seen_threads == [worker.thread.ident]


def test_chunks_that_come_during_a_computation_keep_their_order(synthetic, monkeypatch, in_flight):
    worker = SecondWorker(synthetic(steps=1, blocks=2), in_flight)
    computing, go_on = threading.Event(), threading.Event()
    run = ModelRunner.run

    def slow(self, tasks, streams):
        computing.set()
        assert go_on.wait(PATIENCE_S)
        return run(self, tasks, streams)

    monkeypatch.setattr(ModelRunner, "run", slow)
    worker.loop.post("chunk", worker.chunk(0))
    assert computing.wait(PATIENCE_S)
    # The place of the chunk that computes is given back before its computation ends.
    assert worker.edge.credits == [(1, 0, 1)]
    for number in (1, 2, 3):
        # Returns though a computation is under way.
        worker.loop.deliver(worker.chunk(number))
    go_on.set()
    worker.until(ChunkExit, 4)
    worker.stop()
    assert [m.seq for m in worker.replies if isinstance(m, ChunkExit)] == [0, 1, 2, 3]
    assert worker.edge.credits == [(1, 0, 1)] * 4


def test_an_error_in_the_loop_itself_ends_it(synthetic, monkeypatch, in_flight):
    worker = SecondWorker(synthetic(steps=1, blocks=2), in_flight)

    def broken(chunk, now_s):
        raise ArithmeticError("a fault of the loop itself")

    monkeypatch.setattr(worker.loop._pipeline, "arrive", broken)
    worker.loop.post("chunk", worker.chunk(0))
    worker.thread.join(PATIENCE_S)
    assert not worker.thread.is_alive()
    assert "a fault of the loop itself" in str(worker.ended)


def test_a_thread_of_the_worker_that_fails_ends_the_loop_with_its_reason(synthetic, in_flight):
    worker = SecondWorker(synthetic(steps=1, blocks=2), in_flight)

    def broken():
        raise ArithmeticError("cannot read this chunk")

    start_thread("physis-chunks", broken, worker.loop.fail)
    worker.thread.join(PATIENCE_S)
    assert not worker.thread.is_alive()
    assert isinstance(worker.ended, WorkerFault)
    assert "physis-chunks: ArithmeticError: cannot read this chunk" in str(worker.ended)
