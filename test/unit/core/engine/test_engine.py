"""Whatever the partition, batch, streams and jitter, the engine's chunks equal the reference's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from physis_core.deployment.deployment import Deployment, DeviceSpec, Route, simple_deployment
from physis_core.engine.stream import StreamConfig, StreamHandle
from physis_core.model.loading import load
from physis_core.model.reference import ReferenceStream
from physis_core.pipeline.partition import Partition
from physis_core.types import Observation, ObservationStamp, Refused, StreamState, UserError

CHUNKS = 6
fixtures = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def models(draw):
    heads = draw(st.sampled_from([1, 2]))
    window = draw(st.integers(1, 4))
    return {
        "steps": draw(st.integers(1, 4)),
        "blocks": draw(st.integers(1, 4)),
        "tokens": draw(st.integers(1, 5)),
        "dim": 8 * heads,
        "heads": heads,
        "window_chunks": window,
        "sink_chunks": draw(st.integers(0, window - 1)),
        "kv": draw(st.sampled_from(["noisy", "clean"])),
        "extra_stream_tokens": draw(st.sampled_from([0, 2])),
        "dtype": "float64",
    }


def random_deployment(draw, ref, max_batch):
    """Any map of stages to ranks that the partition allows, not only the named ones."""
    from physis_core.model.loading import load_spec

    graph = load_spec(ref).graph
    if graph.kv == "clean":
        of_block = draw(st.lists(st.integers(0, 3), min_size=graph.blocks, max_size=graph.blocks))
        raw = [of_block[s % graph.blocks] for s in range(graph.stages)]
    else:
        raw = draw(st.lists(st.integers(0, 5), min_size=graph.stages, max_size=graph.stages))
    names = {rank: i for i, rank in enumerate(sorted(set(raw)))}
    partition = Partition(kind="grouped", graph=graph, rank_of=tuple(names[r] for r in raw))
    devices = draw(st.integers(1, partition.ranks))
    return Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="cpu") for _ in range(devices)),
        routes=(
            Route(
                partition=partition,
                device_of_rank=tuple(r % devices for r in range(partition.ranks)),
            ),
        ),
        credits=draw(st.integers(1, 3)),
        max_batch=max_batch,
    )


@given(data=st.data(), config=models(), max_batch=st.sampled_from([1, 4]))
@fixtures
def test_every_chunk_equals_the_reference(watch, synthetic, data, config, max_batch):
    deployment = random_deployment(data.draw, synthetic(**config), max_batch)
    streams = [f"s{i}" for i in range(data.draw(st.integers(1, 3)))]
    conditions = [{"bias": data.draw(st.floats(-1, 1))} for _ in streams]
    with watch(deployment) as seen:
        for i, name in enumerate(streams):
            opened = seen.engine.open_stream(
                StreamConfig(stream_id=name, release="free", seed=i, condition=conditions[i])
            )
            assert isinstance(opened, StreamHandle)
            seen.observe(name)
        # New observations while chunks are under way: whichever a chunk took, its stamp names it.
        for turn in range(1, CHUNKS + 1):
            for name in streams:
                seen.until_chunks(name, turn)
                seen.observe(name, seed=turn)
        for name in streams:
            assert seen.engine.close_stream(name, drain=True)
        for i, name in enumerate(streams):
            chunks = seen.chunks[(name, 0)]
            assert [c.chunk_id for c in chunks] == list(range(len(chunks)))
            seen.assert_equal_to_reference(
                name, seed=i, condition=conditions[i], exact=max_batch == 1
            )


@pytest.mark.parametrize("kind", ["sequential", "step", "block", "stage", "grouped"])
def test_the_five_partitions_by_name(watch, synthetic, kind):
    ref = synthetic(steps=3, blocks=3)
    with watch(simple_deployment(ref, partition=kind, devices=5)) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free", seed=3))
        seen.observe("a")
        seen.until_chunks("a", 12)
        seen.assert_equal_to_reference("a", seed=3)


def test_batches_form_across_steps_and_streams_and_change_nothing(watch, synthetic):
    ref = synthetic(steps=4, blocks=2, dtype="float64")
    costs = {0: {1: 1.0, 8: 1.1}, 1: {1: 1.0, 8: 1.1}}
    deployment = simple_deployment(ref, costs=costs, max_batch=8)
    with watch(deployment) as seen:
        for name in "ab":
            seen.engine.open_stream(StreamConfig(stream_id=name, release="free", seed=1))
            seen.observe(name)
        for name in "ab":
            seen.until_chunks(name, 20)
        tasks = seen.tasks()
        mixed = [
            batch
            for number in np.unique(tasks["batch"])
            if len(batch := tasks[tasks["batch"] == number]) > 1
        ]
        assert any(len(set(batch["stream"])) == 2 for batch in mixed)
        assert any(len(set(batch["stage"])) > 1 for batch in mixed)
        for name in "ab":
            seen.assert_equal_to_reference(name, seed=1, exact=False)


def test_every_step_refresh_uses_newer_observations_and_names_them_all(watch, synthetic, same):
    ref = synthetic(steps=4, blocks=2)
    with watch(simple_deployment(ref, partition="step", devices=4)) as seen:
        seen.engine.open_stream(
            StreamConfig(stream_id="a", release="free", seed=9, refresh="every_step")
        )
        ids = [seen.observe("a")]
        for turn in range(30):
            seen.until_chunks("a", turn + 1)
            ids.append(seen.observe("a", seed=turn))
        seen.engine.close_stream("a", drain=True)
        chunks = seen.chunks[("a", 0)]
        assert max(len(c.observations) for c in chunks) > 1
        tasks = seen.tasks()
        # The engine numbers observations as it takes them, and each one here was taken.
        reference = ReferenceStream(load(ref), seed=9)
        for chunk in chunks:
            of_chunk = tasks[tasks["chunk"] == chunk.chunk_id]
            used = {int(t["stage"]) // 2: int(t["touch"]) for t in of_chunk if t["stage"] % 2 == 0}
            assert sorted(set(used.values())) == [s.observation_id for s in chunk.observations]
            fresh = {
                step: seen.observations[number]
                for step, number in used.items()
                if step == 0 or used[step - 1] != number
            }
            same(chunk, reference.run_chunk(fresh, chunk.chunk_id))


def test_a_new_condition_holds_from_the_next_chunk_on(watch, synthetic, same):
    ref = synthetic(steps=2, blocks=2)
    with watch(simple_deployment(ref, partition="block", devices=2)) as seen:
        seen.engine.open_stream(
            StreamConfig(stream_id="a", release="on_observation", seed=1, condition={"bias": 0.5})
        )
        reference = ReferenceStream(load(ref), seed=1, condition={"bias": 0.5})
        for turn in range(6):
            number = seen.observe("a", seed=turn)
            (*_, chunk) = seen.until_chunks("a", turn + 1)
            same(chunk, reference.run_chunk({0: seen.observations[number]}))
            assert seen.engine.set_condition("a", {"bias": float(turn)}) is None
            reference.set_condition({"bias": float(turn)})
        refused = seen.engine.set_condition("a", {"prompt": "up"})
        assert isinstance(refused, Refused)
        assert "prompt" in refused.reason
        number = seen.observe("a")
        (*_, chunk) = seen.until_chunks("a", 7)
        same(chunk, reference.run_chunk({0: seen.observations[number]}))


def test_conditions_change_while_chunks_are_under_way(watch, synthetic):
    """Each chunk is wholly under one condition, and never under an older one than the chunk
    before.
    """
    ref = synthetic(steps=2, blocks=3, window_chunks=1)
    with watch(simple_deployment(ref, partition="stage", devices=6)) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free", seed=1))
        number = seen.observe("a")
        for version in range(1, 5):
            seen.until_chunks("a", 6 * version)
            assert seen.engine.set_condition("a", {"bias": float(version)}) is None
        seen.until_chunks("a", 40)
        # With a window of one chunk a chunk depends on nothing but itself, so any may be
        # recomputed.
        at = 0
        for chunk in seen.chunks[("a", 0)][:40]:
            for version in range(at, 5):
                reference = ReferenceStream(load(ref), seed=1, condition={"bias": float(version)})
                wanted = reference.run_chunk({0: seen.observations[number]}, chunk.chunk_id)
                if np.array_equal(wanted["action"].numpy(), chunk.outputs["action"]):
                    at = version
                    break
            else:
                pytest.fail(f"chunk {chunk.chunk_id} is under no condition from {at} on")
        assert at == 4


def test_restart_begins_a_new_epoch_with_empty_kv_and_drops_the_old_one(watch, synthetic):
    ref = synthetic(steps=3, blocks=2, window_chunks=3)
    with watch(simple_deployment(ref, partition="stage", devices=6)) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free", seed=4))
        for epoch in range(4):
            seen.observe("a", seed=epoch)
            seen.until_chunks("a", 5, epoch)
            seen.engine.restart_stream("a", "test")
            delivered = seen.counts()[("a", epoch)]
            seen.observe("a", seed=epoch)
            seen.until_chunks("a", 2, epoch + 1)
            assert seen.counts()[("a", epoch)] == delivered
            seen.assert_equal_to_reference("a", seed=4, epoch=epoch)
        restarted = [e for e in seen.events if e.kind == "stream_restarted"]
        assert [e.reason for e in restarted] == ["test"] * 4


def test_no_observation_no_chunk(watch, synthetic, eventually):
    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", period_s=0.01))
        seen.engine.open_stream(StreamConfig(stream_id="b", period_s=0.01))
        seen.observe("b")
        seen.until_chunks("b", 5)
        assert ("a", 0) not in seen.counts()


def test_a_periodic_stream_delivers_in_order_with_deadlines(watch, synthetic):
    with watch(simple_deployment(synthetic(steps=2, blocks=2))) as seen:
        seen.engine.open_stream(
            StreamConfig(stream_id="a", period_s=0.05, expected_response_s=0.04)
        )
        seen.observe("a")
        chunks = seen.until_chunks("a", 8)
        ids = [c.chunk_id for c in chunks]
        assert ids == sorted(set(ids))
        for chunk in chunks:
            assert chunk.entry_s <= chunk.exit_s <= chunk.delivered_s
            assert chunk.deadline_s > chunk.release_s
            assert (chunk.exit_s > chunk.deadline_s) == chunk.missed
        for a, b in zip(chunks, chunks[1:]):
            gap = b.chunk_id - a.chunk_id
            assert b.release_s - a.release_s == pytest.approx(0.05 * gap, abs=1e-6)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({}, "state"),
        ({"state": np.zeros(3, np.float32)}, "shape"),
        ({"state": np.zeros(4, np.float32), "depth": np.zeros(1)}, "depth"),
        ({"state": np.array([0, np.nan, 0, 0], np.float32)}, "NaN"),
        ({"state": np.array(["a"] * 4)}, "type"),
    ],
)
def test_a_bad_observation_is_refused_and_changes_nothing(watch, synthetic, tensors, words):
    stamp = ObservationStamp(
        observation_id=0, capture_oldest_ns=0, capture_newest_ns=0, receipt_ns=0
    )
    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        refused = seen.engine.observe("a", Observation(stamp=stamp, tensors=tensors))
        assert isinstance(refused, Refused)
        assert words in refused.reason
        seen.observe("a")
        seen.until_chunks("a", 3)
        seen.assert_equal_to_reference("a", seed=0)


def test_what_an_open_refuses(watch, synthetic):
    with watch(simple_deployment(synthetic())) as seen:
        open_stream = seen.engine.open_stream
        assert isinstance(open_stream(StreamConfig(stream_id="a", period_s=1.0)), StreamHandle)
        for config, words in [
            (StreamConfig(stream_id="a", period_s=1.0), "open already"),
            (StreamConfig(stream_id="b", period_s=1.0, route=1), "route"),
            (StreamConfig(stream_id="c", period_s=1.0, condition={"x": 1}), "x"),
        ]:
            refused = open_stream(config)
            assert isinstance(refused, Refused)
            assert words in refused.reason
        assert [s.stream_id for s in seen.engine.status().streams] == ["a"]
    with pytest.raises(UserError, match="period_s"):
        StreamConfig(stream_id="a")


def test_a_cancelled_stream_gives_everything_back(watch, synthetic, emulated_costs):
    deployment = simple_deployment(
        synthetic(steps=2, blocks=4),
        partition="stage",
        devices=8,
        device_kind="emulated",
        costs=emulated_costs(4, 0.02),
    )
    with watch(deployment) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until_chunks("a", 1)
        assert seen.engine.close_stream("a", drain=False)
        (stats,) = seen.engine.worker_stats().values()
        assert stats.queues == {}
        assert seen.engine.status().streams == ()
        assert isinstance(
            seen.engine.open_stream(StreamConfig(stream_id="a", release="free")), StreamHandle
        )
        count = len(seen.chunks[("a", 0)])
        seen.observe("a")
        seen.until_chunks("a", count + 3)
        assert [c.chunk_id for c in seen.chunks[("a", 0)][count : count + 3]] == [0, 1, 2]


def test_an_error_in_one_stream_ends_it_and_no_other(watch, synthetic, monkeypatch):
    """An input that passes the checks and still makes the model raise."""
    from physis_core.model.synthetic.model import SyntheticModel

    inject = SyntheticModel.inject

    def picky(self, observation, noise):
        if noise[0].seed == 13 and noise[0].chunk_id == 3:
            raise RuntimeError("cannot take this")
        return inject(self, observation, noise)

    monkeypatch.setattr(SyntheticModel, "inject", picky)
    with watch(simple_deployment(synthetic(dtype="float64"), max_batch=4)) as seen:
        for name, seed in [("bad", 13), ("good", 14)]:
            seen.engine.open_stream(StreamConfig(stream_id=name, release="free", seed=seed))
            seen.observe(name)
        seen.until(lambda: any(e.kind == "stream_failed" for e in seen.events))
        (failed,) = [e for e in seen.events if e.kind == "stream_failed"]
        assert failed.stream_id == "bad"
        assert "cannot take this" in failed.reason
        before = len(seen.chunks[("good", 0)])
        seen.until_chunks("good", before + 10)
        seen.assert_equal_to_reference("good", seed=14, exact=False)
        assert [c.chunk_id for c in seen.chunks[("bad", 0)]] in ([0, 1], [0, 1, 2], [0], [])


def test_drain_delivers_what_is_on_its_way(watch, synthetic):
    with watch(simple_deployment(synthetic(), partition="stage", devices=16)) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until_chunks("a", 3)
        assert seen.engine.close_stream("a", drain=True)
        (closed,) = [e for e in seen.events if e.kind == "stream_closed"]
        assert closed.reason == "drained"
        ids = [c.chunk_id for c in seen.chunks[("a", 0)]]
        assert ids == list(range(len(ids)))
        assert not seen.engine.close_stream("a")


def test_figures_count_what_happened(watch, synthetic):
    with watch(simple_deployment(synthetic())) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until_chunks("a", 10)
        (figures,) = seen.engine.status().streams
        assert figures.state is StreamState.OPEN
        assert figures.delivered >= 10
        assert figures.released >= figures.delivered
        assert figures.interval_s.n >= 9
        assert 0 < figures.interval_s.p50 <= figures.interval_s.max
        assert figures.response_s.n >= 10
        assert seen.engine.status().warmup_s > 0
