"""A stream of 10,000 chunks equals the reference to the last one, in memory that does not grow."""

from __future__ import annotations

import threading

import numpy as np
import psutil
import pytest
import torch

from physis_core.model.loading import ModelRef, load
from physis_core.model.reference import ReferenceStream
from physis_core.runtime.deployment import simple_deployment
from physis_core.runtime.engine import Engine
from physis_core.runtime.stream import StreamConfig
from physis_core.types import FinishedChunk, Observation, ObservationStamp, Refused

CHUNKS = 10_000
SETTLED = 2_000
PATIENCE_S = 600.0
GROWTH_BYTES = 24 << 20


def test_ten_thousand_chunks_neither_drift_nor_grow() -> None:
    torch.set_num_threads(1)
    model = ModelRef(
        kind="synthetic",
        config={"steps": 2, "blocks": 2, "tokens": 4, "window_chunks": 5, "sink_chunks": 1},
    )
    state = np.array([0.3, -0.2, 0.1, 0.7], np.float32)
    reference = ReferenceStream(load(model), seed=11)
    done = threading.Event()
    settled_bytes: list[int] = []
    at: list[int] = []
    wrong: list[int] = []
    workers: list[psutil.Process] = []

    def memory() -> int:
        own = [psutil.Process(), *workers]
        return sum(process.memory_info().rss for process in own)

    def on_chunk(chunk: FinishedChunk) -> None:
        # Chunks that were dropped before they entered leave a gap in the ids, not in the stream.
        expected = reference.run_chunk({0: {"state": state}}, chunk.chunk_id)
        if not np.array_equal(chunk.outputs["action"], expected["action"].numpy()):
            wrong.append(chunk.chunk_id)
        at.append(chunk.chunk_id)
        if len(at) == SETTLED:
            settled_bytes.append(memory())
        if len(at) == CHUNKS or wrong:
            done.set()

    deployment = simple_deployment(model, partition="block", devices=2, workers=2)
    with Engine(deployment, on_chunk=on_chunk) as engine:
        engine.start(timeout_s=120.0)
        workers.extend(psutil.Process().children(recursive=True))
        opened = engine.open_stream(StreamConfig(stream_id="long", release="free", seed=11))
        assert not isinstance(opened, Refused)
        stamp = ObservationStamp(
            observation_id=0, capture_oldest_ns=0, capture_newest_ns=0, receipt_ns=0
        )
        refused = engine.observe("long", Observation(stamp=stamp, tensors={"state": state}))
        assert refused is None
        if not done.wait(PATIENCE_S):
            pytest.fail(f"only {len(at)} chunks in {PATIENCE_S:.0f} s")
        grown = memory() - settled_bytes[0]
    assert not wrong, f"chunk {wrong[0]} differs from the reference"
    assert at[:CHUNKS] == sorted(at[:CHUNKS])
    assert grown < GROWTH_BYTES, f"{grown / 2**20:.1f} MiB more than after {SETTLED} chunks"
