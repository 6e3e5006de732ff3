"""What the engine's tests do not reach: a device that computes while the loop goes on."""

from __future__ import annotations

import time

from physis_core.runtime.deployment import simple_deployment
from physis_core.runtime.device import ModelExecutor
from physis_core.runtime.stream import StreamConfig


class Later:
    """Reached a while after it was asked for, as a GPU's event is."""

    def __init__(self, fails=False):
        self._due_s = time.monotonic() + 1e-3
        self._fails = fails

    def query(self):
        if self._fails:
            raise RuntimeError("the device is gone")
        return time.monotonic() >= self._due_s


def test_a_device_that_is_polled_gives_the_same_chunks(watch, synthetic, monkeypatch):
    monkeypatch.setattr(ModelExecutor, "asynchronous", property(lambda self: True))
    monkeypatch.setattr(ModelExecutor, "launched", lambda self: Later())
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
    monkeypatch.setattr(ModelExecutor, "asynchronous", property(lambda self: True))
    monkeypatch.setattr(ModelExecutor, "launched", lambda self: Later())
    with watch(simple_deployment(synthetic(), partition="block", devices=4)) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free", seed=2))
        for epoch in range(5):
            seen.observe("a")
            seen.until_chunks("a", 3, epoch)
            seen.assert_equal_to_reference("a", seed=2, epoch=epoch)
            seen.engine.restart_stream("a", "test")


def test_a_device_that_fails_afterwards_ends_the_streams_on_it(watch, synthetic, monkeypatch):
    monkeypatch.setattr(ModelExecutor, "asynchronous", property(lambda self: True))
    monkeypatch.setattr(ModelExecutor, "launched", lambda self: Later(fails=True))
    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until(lambda: any(e.kind == "stream_failed" for e in seen.events))
        (failed,) = [e for e in seen.events if e.kind == "stream_failed"]
        assert "the device is gone" in failed.reason
