"""A stream of 10,000 chunks neither drifts from the reference nor grows in memory."""

from __future__ import annotations

import gc
import threading

import numpy as np
import psutil
import pytest
import torch

from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig
from physis_core.model.loading import load
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.types import Observation, ObservationStamp

pytestmark = pytest.mark.integration
CHUNKS = 10_000
SETTLED = 2_000
MOST_GROWTH_BYTES = 24 * 2**20


def test_ten_thousand_chunks():
    torch.set_num_threads(1)
    ref = ModelRef(
        family="synthetic",
        config={
            "steps": 2,
            "blocks": 2,
            "tokens": 2,
            "dim": 8,
            "heads": 1,
            "window_chunks": 4,
            "sink_chunks": 1,
        },
    )
    state = np.arange(4, dtype=np.float32)
    digests: list[bytes] = []
    memory: list[int] = []
    done = threading.Event()
    process = psutil.Process()

    def deliver(chunk):
        if done.is_set():
            return
        assert chunk.chunk_id == len(digests)
        digests.append(chunk.outputs["action"].tobytes())
        if len(digests) in (SETTLED, CHUNKS):
            gc.collect()
            memory.append(process.memory_info().rss)
        if len(digests) == CHUNKS:
            done.set()

    with Engine(simple_deployment(ref, partition="block", devices=2), on_chunk=deliver) as engine:
        engine.start()
        engine.open_stream(StreamConfig(stream_id="a", release="free", seed=1))
        stamp = ObservationStamp(
            observation_id=1, capture_oldest_ns=1, capture_newest_ns=1, receipt_ns=1
        )
        assert engine.observe("a", Observation(stamp=stamp, tensors={"state": state})) is None
        assert done.wait(600)
    reference = ReferenceStream(load(ref), seed=1)
    for at, given in enumerate(digests):
        wanted = reference.run_chunk({0: {"state": state}})["action"].numpy().tobytes()
        assert given == wanted, at
    assert memory[1] - memory[0] < MOST_GROWTH_BYTES, memory
