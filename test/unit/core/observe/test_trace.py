"""A real run of emulated and real devices, looked at through its trace."""

import json
import threading

import numpy as np
import pytest
import torch

from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig
from physis_core.model.registry import ModelRef
from physis_core.observe.recorder import TaskLog
from physis_core.observe.run_figures import run_figures
from physis_core.observe.trace import RunTrace
from physis_core.types import Observation, ObservationStamp, UserError

CHUNKS = 12
STEPS, BLOCKS = 2, 3


@pytest.fixture(scope="module")
def trace():
    torch.set_num_threads(1)
    ref = ModelRef(family="synthetic", config={"steps": STEPS, "blocks": BLOCKS})
    done = threading.Event()
    chunks = []

    def deliver(chunk):
        chunks.append(chunk)
        if len(chunks) == CHUNKS:
            done.set()

    deployment = simple_deployment(ref, partition="block", devices=3, max_batch=2)
    with Engine(deployment, on_chunk=deliver) as engine:
        engine.start()
        engine.open_stream(StreamConfig(stream_id="a", release="free"))
        stamp = ObservationStamp(
            observation_id=1, capture_oldest_ns=5, capture_newest_ns=6, receipt_ns=7
        )
        tensors = {"state": np.zeros(4, np.float32)}
        engine.observe("a", Observation(stamp=stamp, tensors=tensors))
        assert done.wait(60)
        yield engine.trace()


def test_one_chunk_id_is_followed_through_every_stage_and_edge(trace):
    for row in trace.chunks[:CHUNKS]:
        way = trace.visits_of(int(row["stream"]), int(row["epoch"]), int(row["chunk"]))
        assert [v.stage for v in way] == list(range(STEPS * BLOCKS))
        assert way[0].source == -1
        for before, here in zip(way, way[1:]):
            assert here.source == before.device
            assert before.end_s <= here.ready_s <= here.start_s <= here.end_s
        assert row["entry_s"] <= row["release_s"] + 1e-3
        assert row["exit_s"] == way[-1].end_s <= row["delivered_s"]
        assert row["capture_oldest_ns"] == 5


def test_the_five_groups(trace):
    figures = run_figures(trace, blocks=BLOCKS)
    assert len(figures["stages"]) == STEPS * BLOCKS
    assert all(s["compute_ms"]["p50"] > 0 for s in figures["stages"])
    assert {(e["source"], e["target"]) for e in figures["edges"]} == {(0, 1), (1, 2), (2, 0)}
    assert [d["device"] for d in figures["devices"]] == [0, 1, 2]
    for device in figures["devices"]:
        assert device["weight_bytes"] > 0
        assert device["kv_bytes"] > 0
        assert 0 < device["busy_fraction"] <= 1
        assert device["workspace_bytes"] is None
    sizes = figures["batches"]["size"]
    assert sum(size * n for size, n in sizes.items()) == len(trace.tasks)
    (stream,) = figures["streams"]
    assert stream["chunks"] >= CHUNKS
    assert stream["gaps"] == 0
    json.dumps(figures)


def test_a_saved_trace_comes_back(trace, tmp_path):
    path = tmp_path / "run.npz"
    trace.save(path)
    back = RunTrace.load(path)
    np.testing.assert_array_equal(back.tasks, trace.tasks)
    np.testing.assert_array_equal(back.chunks, trace.chunks)
    assert back.edges == trace.edges
    path.write_bytes(b"no trace")
    with pytest.raises(UserError, match="trace"):
        RunTrace.load(path)


def test_the_log_keeps_the_newest_and_counts_the_lost():
    log = TaskLog(4)
    for chunk in range(6):
        log.add(1, 0, chunk, 0, 0, chunk, 1, -1, 1, 0.0, 0.0, 0.0, float(chunk))
    tasks, lost = log.take()
    assert list(tasks["chunk"]) == [2, 3, 4, 5]
    assert lost == 2
    log.add(1, 0, 6, 0, 0, 6, 1, -1, 1, 0.0, 0.0, 0.0, 6.0)
    tasks, lost = log.take()
    assert list(tasks["chunk"]) == [6]
    assert lost == 0
