"""A running engine with what it delivered and told, for tests that disturb it."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np

from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig
from physis_core.types import Observation, ObservationStamp, Refused

PATIENCE_S = 120.0
STATE = np.arange(4, dtype=np.float32)


def observation(state=STATE):
    stamp = ObservationStamp(
        observation_id=1, capture_oldest_ns=1, capture_newest_ns=1, receipt_ns=1
    )
    return Observation(stamp=stamp, tensors={"state": state})


class Collected:
    """What an engine delivered and told."""

    def __init__(self):
        self.chunks = []
        self.events = []
        self.news = threading.Condition()

    def chunk(self, chunk):
        with self.news:
            self.chunks.append(chunk)
            self.news.notify_all()

    def event(self, event):
        with self.news:
            self.events.append(event)
            self.news.notify_all()

    def until(self, holds):
        """Not every state is news: it is looked at some times a second as well.

        Without the lock: `holds` may ask the engine, whose loop may wait for the lock to deliver.
        """
        end = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < end, [(e.kind, e.reason) for e in self.events]
            with self.news:
                self.news.wait(0.1)

    def of(self, stream_id, epoch=0):
        return [c for c in self.chunks if c.stream_id == stream_id and c.epoch == epoch]


class Running(Collected):
    """An engine with what it delivered and told."""

    def __init__(self, deployment, **options):
        super().__init__()
        self.engine = Engine(deployment, on_chunk=self.chunk, on_event=self.event, **options)

    def __enter__(self):
        self.engine.start(PATIENCE_S)
        return self

    def __exit__(self, *_):
        self.engine.close()

    def open(self, stream_id, **options):
        options = {"release": "free", **options}
        opened = self.engine.open_stream(StreamConfig(stream_id=stream_id, **options))
        assert not isinstance(opened, Refused), opened
        assert self.engine.observe(stream_id, observation()) is None

    def until_chunks(self, stream_id, epoch, count):
        self.until(lambda: len(self.of(stream_id, epoch)) >= count)
        return self.of(stream_id, epoch)

    def kill(self, worker):
        os.kill(self.engine.worker_pids()[worker], signal.SIGKILL)

    def told(self, kind):
        return [e for e in self.events if e.kind == kind]

    def until_quiet(self):
        """Every place that a chunk took on its way has come back."""
        end = time.monotonic() + PATIENCE_S
        while True:
            stats = self.engine.worker_stats(PATIENCE_S)
            taken = [m.places_taken for m in stats.values()]
            waiting = [sum(m.queues.values()) for m in stats.values()]
            if not any(taken) and not any(waiting):
                return stats
            assert time.monotonic() < end, (taken, waiting)
            time.sleep(0.05)
