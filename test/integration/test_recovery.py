"""kill -9 of a worker of a running engine: it is started anew and its streams go on."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
import torch
from running_engine import STATE, Running, observation

from physis_core.cluster.messages import EdgeLost
from physis_core.cluster.processes import ProcessCluster
from physis_core.deployment.deployment import Deployment, DeviceSpec, Route, simple_deployment
from physis_core.engine.stream import StreamConfig
from physis_core.model.loading import load, load_spec
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.pipeline.partition import make_partition
from physis_core.types import Refused

pytestmark = pytest.mark.integration
WINDOW = 4
CONFIG = {"steps": 2, "blocks": 2, "window_chunks": WINDOW, "dtype": "float64"}


def assert_equal(chunks, reference):
    for at, chunk in enumerate(chunks):
        assert chunk.chunk_id == at
        for name, value in reference.run_chunk({0: {"state": STATE}}).items():
            np.testing.assert_array_equal(
                chunk.outputs[name], value.numpy(), err_msg=f"epoch {chunk.epoch} chunk {at}"
            )


def reference_after(ref, chunks):
    """A reference stream that has run `chunks` chunks of epoch 0, and their clean latents."""
    stream = ReferenceStream(load(ref), seed=5)
    latents = []
    for _ in range(chunks):
        stream.run_chunk({0: {"state": STATE}})
        latents.append(stream.clean)
    return stream, latents


@pytest.mark.parametrize(
    ("kv", "partition", "sink", "lost"),
    [
        ("noisy", "stage", 1, 0),
        ("noisy", "block", 0, 1),
        ("clean", "block", 0, 0),
        ("clean", "block", 0, 1),
    ],
)
def test_after_a_snapshot_the_stream_is_the_reference_from_the_same_boundary(
    kv, partition, sink, lost
):
    torch.set_num_threads(1)
    ref = ModelRef(family="synthetic", config={**CONFIG, "kv": kv, "sink_chunks": sink})
    deployment = simple_deployment(
        ref, partition=partition, devices=4, workers=2, recovery="snapshot", snapshot_every=3
    )
    with Running(deployment) as run:
        run.open("a", seed=5)
        run.until_chunks("a", 0, 20)
        run.kill(lost)
        after = run.until_chunks("a", 1, 12)
        before = run.of("a", 0)
        assert run.engine.close_stream("a")
        (record,) = run.engine.recoveries()
        (event,) = run.told("stream_recovered")
    epoch, boundary = record.from_chunk
    assert (epoch, record.epoch, record.by) == (0, 1, "snapshot")
    assert (boundary + 1) % 3 == 0
    assert f"chunk {boundary} of epoch 0" in event.reason
    assert_equal(before, ReferenceStream(load(ref), seed=5))
    known, _ = reference_after(ref, boundary + 1)
    reference = ReferenceStream(load(ref), seed=5, epoch=1)
    reference.restore(known.snapshot())
    assert_equal(after, reference)
    assert record.lost_s <= record.whole_s <= record.ready_s <= record.first_exit_s


def test_without_a_whole_snapshot_the_stream_begins_empty_and_says_so():
    """And a restart that is asked for on the way back counts, and keeps nothing."""
    ref = ModelRef(family="synthetic", config=CONFIG)
    deployment = simple_deployment(
        ref, partition="block", devices=2, workers=2, recovery="snapshot", snapshot_every=100_000
    )
    with Running(deployment) as run:
        run.open("a", seed=5)
        run.until_chunks("a", 0, 10)
        run.kill(1)
        first = run.until_chunks("a", 1, 6)[:6]
        (record,) = run.engine.recoveries()
        assert record.from_chunk is None
        assert "empty KV" in run.told("stream_recovered")[0].reason
        run.kill(1)
        run.until(lambda: len(run.told("worker_lost")) == 2)
        run.engine.restart_stream("a", "the clock jumped")
        assert run.engine.observe("a", observation()) is None
        second = run.until_chunks("a", 3, 6)[:6]
        assert not run.of("a", 2)
    assert_equal(first, ReferenceStream(load(ref), seed=5, epoch=1))
    assert_equal(second, ReferenceStream(load(ref), seed=5, epoch=3))


@pytest.mark.parametrize(("kv", "sink"), [("noisy", 0), ("noisy", 1), ("clean", 0)])
def test_a_rebuilt_stream_is_the_reference_rebuilt_from_the_same_outputs(kv, sink):
    torch.set_num_threads(1)
    ref = ModelRef(family="synthetic", config={**CONFIG, "kv": kv, "sink_chunks": sink})
    deployment = simple_deployment(ref, partition="block", devices=2, workers=2, recovery="rebuild")
    with Running(deployment) as run:
        run.open("a", seed=5)
        run.until_chunks("a", 0, 20)
        run.kill(1)
        after = run.until_chunks("a", 1, 12)
        (record,) = run.engine.recoveries()
        run.engine.close_stream("a")
    assert record.chunks == WINDOW
    last = record.from_chunk[1]
    _, latents = reference_after(ref, last + 1)
    past = [*latents[:sink], *latents[len(latents) - (WINDOW - sink) :]]
    reference = ReferenceStream(load(ref), seed=5, epoch=1)
    reference.rebuild(past)
    assert_equal(after, reference)


@pytest.mark.parametrize("recovery", ["snapshot", "rebuild"])
def test_other_streams_never_stop_and_all_places_come_back(recovery):
    ref = ModelRef(family="synthetic", config=CONFIG)
    graph = load_spec(ref).graph
    deployment = Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="cpu", worker=w) for w in range(3)),
        routes=(
            Route(partition=make_partition("block", graph, 2), device_of_rank=(0, 1)),
            Route(partition=make_partition("sequential", graph, 1), device_of_rank=(2,)),
        ),
        workers=3,
        recovery=recovery,
    )
    with Running(deployment) as run:
        run.open("over both", period_s=0.02, release="periodic")
        run.open("alone", period_s=0.02, release="periodic", route=1)
        run.until_chunks("over both", 0, 10)
        run.kill(1)
        run.until(lambda: bool(run.told("worker_lost")))
        count = len(run.of("alone", 0))
        # Long before the lost worker is back.
        run.until(lambda: len(run.of("alone", 0)) >= count + 5)
        assert not run.told("stream_recovered")
        run.until_chunks("over both", 1, 10)
        assert not run.of("alone", 1)
        assert [e.stream_id for e in run.told("stream_restarted")] == ["over both"]
        assert run.engine.status().workers_alive == (0, 1, 2)
        # Conditions and new streams reach the new worker as any other.
        assert run.engine.set_condition("over both", {"bias": 0.5}) is None
        # A busy machine may be overloaded for a while: that is no place that was lost.
        run.until(lambda: run.engine.status().overload.admit)
        run.open("new", period_s=0.02, release="periodic")
        run.until_chunks("new", 0, 3)
        for name in ("over both", "alone", "new"):
            assert run.engine.close_stream(name, drain=True)
        run.until_quiet()
    assert not run.told("stream_failed")


def test_the_same_stream_survives_loss_after_loss_of_any_worker():
    """Also two at once, and one while the other is still away."""
    ref = ModelRef(family="synthetic", config=CONFIG)
    deployment = simple_deployment(
        ref, partition="stage", devices=4, workers=2, recovery="snapshot", snapshot_every=2
    )
    with Running(deployment) as run:
        run.open("a", seed=5)
        run.until_chunks("a", 0, 10)
        run.kill(0)
        run.kill(1)
        run.until_chunks("a", 1, 10)
        run.kill(1)
        run.until(lambda: len(run.told("worker_lost")) >= 3)
        run.kill(0)
        run.until_chunks("a", 2, 10)
        assert run.engine.close_stream("a", drain=True)
        run.until_quiet()
        records = run.engine.recoveries()
    assert [r.epoch for r in records] == [1, 2]
    assert not run.told("stream_failed")
    # The second way back began from a boundary of either epoch, whichever was the newest whole one.
    known, _ = reference_after(ref, records[0].from_chunk[1] + 1)
    first = ReferenceStream(load(ref), seed=5, epoch=1)
    first.restore(known.snapshot())
    second = ReferenceStream(load(ref), seed=5, epoch=2)
    if records[1].from_chunk[0] == 1:
        for _ in range(records[1].from_chunk[1] + 1):
            first.run_chunk({0: {"state": STATE}})
        second.restore(first.snapshot())
    else:
        second.restore(known.snapshot())
    assert_equal(run.of("a", 2), second)


def test_an_edge_that_breaks_alone_is_made_anew_at_both_ends():
    ref = ModelRef(family="synthetic", config=CONFIG)
    deployment = simple_deployment(
        ref, partition="block", devices=2, workers=2, recovery="snapshot", snapshot_every=2
    )
    tell = []

    def make(deployment, on_message):
        tell.append(on_message)
        return ProcessCluster(deployment, on_message)

    with Running(deployment, make=make) as run:
        run.open("a", seed=5)
        run.until_chunks("a", 0, 10)
        pids = run.engine.worker_pids()
        for worker in (1, 0):
            # Both ends tell; the second one is no news.
            tell[0](worker, EdgeLost(edge=(0, 1), generation=0, reason="cut"))
        after = run.until_chunks("a", 1, 10)
        (record,) = run.engine.recoveries()
        assert run.engine.worker_pids() == pids
        assert len(run.told("edge_lost")) == 1
        # The edge of the second making is as good as the first one.
        run.kill(1)
        run.until_chunks("a", 2, 10)
        assert run.engine.close_stream("a", drain=True)
        run.until_quiet()
    known, _ = reference_after(ref, record.from_chunk[1] + 1)
    reference = ReferenceStream(load(ref), seed=5, epoch=1)
    reference.restore(known.snapshot())
    assert_equal(after[:10], reference)


def test_in_lockstep_the_lost_chunk_is_made_again_without_a_new_observation():
    ref = ModelRef(family="synthetic", config=CONFIG)
    deployment = simple_deployment(ref, partition="block", devices=2, workers=2, recovery="rebuild")
    with Running(deployment) as run:
        run.open("sim", release="on_observation")
        run.until_chunks("sim", 0, 1)
        run.engine.stall_device(1, 3600.0)
        run.engine.observe("sim", observation())
        run.until(lambda: run.engine.status().streams[0].in_flight == 1)
        run.kill(1)
        (chunk,) = run.until_chunks("sim", 1, 1)
        assert chunk.chunk_id == 0


def test_a_worker_that_does_not_stay_up_is_given_up_and_its_streams_end():
    ref = ModelRef(family="synthetic", config=CONFIG)
    deployment = simple_deployment(
        ref, partition="block", devices=2, workers=2, recovery="rebuild", respawns=1
    )
    with Running(deployment) as run:
        run.open("a")
        run.until_chunks("a", 0, 3)
        run.kill(1)
        run.until_chunks("a", 1, 3)
        run.kill(1)
        run.until(lambda: bool(run.told("stream_failed")))
        (failed,) = run.told("stream_failed")
        assert "worker 1" in failed.reason
        assert "given up" in failed.reason
        assert [e.worker for e in run.told("worker_given_up")] == [1]
        refused = run.engine.open_stream(StreamConfig(stream_id="b", release="free"))
        assert isinstance(refused, Refused)
        pids = [run.engine.worker_pids()[0]]
    assert all(not psutil.pid_exists(p) for p in pids)


def test_emulated_devices_come_back_too():
    ref = ModelRef(family="synthetic", config=CONFIG)
    for recovery in ("snapshot", "rebuild"):
        deployment = simple_deployment(
            ref,
            partition="stage",
            devices=4,
            workers=2,
            device_kind="emulated",
            costs={block: {1: 0.002} for block in range(2)},
            recovery=recovery,
        )
        with Running(deployment) as run:
            run.open("a")
            run.until_chunks("a", 0, 20)
            run.kill(1)
            run.until_chunks("a", 1, 20)
