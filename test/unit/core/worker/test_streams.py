"""How a worker wires up the stages of a stream of which it runs a part."""

from __future__ import annotations

import pytest

from physis_core.cluster.messages import Opening
from physis_core.deployment.deployment import simple_deployment
from physis_core.pipeline.pipeline import Pipeline
from physis_core.worker.streams import WorkerStreams
from physis_core.worker.warmup import build_devices


def test_what_is_left_of_a_chunk_counts_blocks_that_other_workers_run(synthetic):
    """Worker 0 runs block 0 alone, and has measured no other."""
    deployment = simple_deployment(
        synthetic(steps=2, blocks=2), partition="block", devices=2, workers=2
    )
    devices, _ = build_devices(deployment, 0)
    pipeline = Pipeline({0: devices[0].state}, credits=2, max_batch=1)
    pipeline.add_link(0, 1)
    pipeline.add_link(1, 0)
    streams = WorkerStreams(deployment, pipeline, {0: devices[0].executor.models})
    streams.open(
        Opening(
            stream=1,
            route=0,
            epoch=0,
            seed=0,
            refresh="entry",
            priority=0,
            conditions=[],
            block_s=[0.01, 0.03],
        )
    )
    left_s = {stage: slot.remaining_s for stage, slot in pipeline.streams[1].slots.items()}
    assert left_s == {0: pytest.approx(0.03 + 0.01 + 0.03), 2: pytest.approx(0.03)}
