"""Emulated devices through the real queues, credits and dispatcher: no barrier, no loss, no
deadlock.
"""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from physis_core.deployment.deployment import Deployment, DeviceSpec, Route, simple_deployment
from physis_core.engine.stream import StreamConfig, StreamHandle
from physis_core.model.loading import load_spec
from physis_core.pipeline.partition import Partition, make_partition
from physis_core.types import Refused

STAGE_S = 0.004


@pytest.fixture
def line(synthetic, emulated_costs):
    """Eight emulated stages on eight devices."""
    return simple_deployment(
        synthetic(steps=2, blocks=4),
        partition="stage",
        devices=8,
        device_kind="emulated",
        costs=emulated_costs(4, STAGE_S),
    )


def test_a_stalled_stage_stops_others_only_when_their_credits_end(watch, line):
    stalled, stall_s = 5, 2.0
    with watch(line) as seen:
        # Slow enough that queues are empty when the stall begins, so that every credit can be seen.
        seen.engine.open_stream(
            StreamConfig(stream_id="a", period_s=10 * STAGE_S, max_in_flight=1000, hold=False)
        )
        seen.observe("a")
        seen.until_chunks("a", 5)
        seen.engine.stall_device(stalled, stall_s)
        seen.until_chunks("a", len(seen.chunks[("a", 0)]) + 30)
        tasks = seen.tasks()
        of = [tasks[tasks["device"] == d] for d in range(8)]
        starts_s = np.sort(of[stalled]["start_s"])
        widest = int(np.argmax(np.diff(starts_s)))
        begin_s, end_s = starts_s[widest], starts_s[widest + 1]
        assert end_s - begin_s > stall_s / 2
        during = [int(((t["start_s"] > begin_s) & (t["start_s"] < end_s)).sum()) for t in of]
        # Those before it go on until each has filled the places after it; those behind run empty.
        for d in range(stalled):
            assert 1 <= during[d] <= line.credits * (stalled - d) + 1, during
        assert during[stalled] == 0
        assert max(during[stalled + 1 :]) <= line.credits + 1, during
        # Nothing is lost, repeated or out of order.
        ids = [c.chunk_id for c in seen.chunks[("a", 0)]]
        assert ids == sorted(set(ids))
        first, last = int(of[0]["chunk"].min()), int(of[7]["chunk"].max())
        walked = [[c for c in t["chunk"].tolist() if first <= c <= last] for t in of]
        assert all(chunks == walked[0] for chunks in walked)


def test_credits_bound_every_queue(watch, line):
    with watch(line) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free", max_in_flight=1000))
        seen.observe("a")
        seen.engine.stall_device(7, 1.0)
        for _ in range(20):
            (stats,) = seen.engine.worker_stats().values()
            queues = stats.queues
            assert all(n <= line.credits for d, n in queues.items() if d > 0)
            time.sleep(0.02)
        seen.until_chunks("a", 20)


def test_one_slow_stream_does_not_hold_up_another_behind_the_same_edge(watch, line):
    """Places are counted per stream: a stream whose chunks stand still leaves the others theirs."""
    with watch(line) as seen:
        for name in "ab":
            seen.engine.open_stream(StreamConfig(stream_id=name, release="free"))
            seen.observe(name)
        seen.until_chunks("a", 10)
        seen.until_chunks("b", 10)
        a, b = (len(seen.chunks[(n, 0)]) for n in "ab")
        assert 0.3 < a / b < 3.0


def test_duration_noise_is_the_same_in_every_run(synthetic, emulated_costs, watch):
    deployment = simple_deployment(
        synthetic(steps=1, blocks=2),
        partition="stage",
        devices=2,
        device_kind="emulated",
        costs=emulated_costs(2, 0.02),
        noise=0.2,
        noise_seed=3,
    )
    taken = []
    for _ in range(2):
        with watch(deployment) as seen:
            seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
            seen.observe("a")
            seen.until_chunks("a", 6)
            tasks = seen.tasks()
            first = tasks[tasks["chunk"] < 5]
            first = np.sort(first, order=["chunk", "stage"])
            taken.append(first["end_s"] - first["start_s"])
    # The order is the noise's; the rest is how late a busy machine noticed each end.
    from physis_core.pipeline.emulation import DurationNoise

    noise = DurationNoise(0.2, 3)
    due = np.array([0.02 * noise.factor(c, s) for c in range(5) for s in range(2)])
    for times in taken:
        assert (times >= due - 1e-4).all()


def test_overload_is_told_and_ends_admission(watch, synthetic, emulated_costs):
    deployment = simple_deployment(
        synthetic(steps=1, blocks=2),
        partition="stage",
        devices=2,
        device_kind="emulated",
        costs=emulated_costs(2, 0.05),
    )
    with watch(deployment) as seen:
        # Twice as fast as the stages can go.
        opened = seen.engine.open_stream(StreamConfig(stream_id="a", period_s=0.025))
        assert isinstance(opened, StreamHandle)
        seen.observe("a")
        seen.until(lambda: any(e.kind == "overload" for e in seen.events))
        seen.until(lambda: any(e.kind == "chunks_dropped" for e in seen.events))
        refused = seen.engine.open_stream(StreamConfig(stream_id="b", period_s=1.0))
        assert isinstance(refused, Refused)
        assert refused.short_resource == "time"
        (figures,) = seen.engine.status().streams
        assert figures.dropped > 0
        assert figures.in_flight <= 3


@pytest.mark.parametrize("seed", range(4))
def test_soak_of_random_maps_stalls_restarts_and_streams_never_deadlocks(
    watch, synthetic, emulated_costs, seed
):
    """Rings and crossings that no sane plan has: every stage on a random device, one credit."""
    rng = random.Random(seed)
    kv = rng.choice(["noisy", "noisy", "clean"])
    ref = synthetic(steps=3, blocks=4, kv=kv)
    graph = load_spec(ref).graph
    routes = []
    devices = 4
    for _ in range(2):
        if kv == "clean":
            of_block = [rng.randrange(devices) for _ in range(graph.blocks)]
            raw = [of_block[s % graph.blocks] for s in range(graph.stages)]
        else:
            raw = [rng.randrange(devices) for _ in range(graph.stages)]
        names = sorted(set(raw))
        partition = Partition(
            kind="grouped", graph=graph, rank_of=tuple(names.index(r) for r in raw)
        )
        routes.append(Route(partition=partition, device_of_rank=tuple(names)))
    deployment = Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="emulated") for _ in range(devices)),
        routes=tuple(routes),
        credits=1,
        max_batch=rng.choice([1, 4]),
        costs={b: {1: 4e-4 * (1 + b), 4: 8e-4 * (1 + b)} for b in range(4)},
        noise=0.25,
        noise_seed=seed,
    )
    with watch(deployment) as seen:
        live = {}
        born = 0
        for _ in range(60):
            act = rng.choice(["open", "open", "close", "restart", "stall", "observe", "wait"])
            if act == "open" and len(live) < 5:
                name = f"s{born}"
                born += 1
                opened = seen.engine.open_stream(
                    StreamConfig(
                        stream_id=name,
                        route=rng.randrange(2),
                        priority=rng.randrange(3),
                        refresh=rng.choice(["entry", "every_step"]),
                        **rng.choice([{"release": "free"}, {"period_s": 0.25}]),
                    )
                )
                if isinstance(opened, StreamHandle):
                    live[name] = 0
                    seen.observe(name)
                else:
                    assert opened.short_resource == "time", opened
            elif act == "close" and live:
                name = rng.choice(sorted(live))
                assert seen.engine.close_stream(name, drain=rng.random() < 0.5)
                del live[name]
            elif act == "restart" and live:
                name = rng.choice(sorted(live))
                seen.engine.restart_stream(name, "soak")
                live[name] += 1
                seen.observe(name)
            elif act == "stall":
                seen.engine.stall_device(rng.randrange(devices), rng.random() * 0.05)
            elif act == "observe" and live:
                seen.observe(rng.choice(sorted(live)))
            else:
                time.sleep(rng.random() * 0.02)
        # Whatever was done to them, all that are still open go on.
        for name, epoch in live.items():
            seen.until_chunks(name, len(seen.chunks[(name, epoch)]) + 3, epoch)
        for name in live:
            assert seen.engine.close_stream(name, drain=True)
        for chunks in seen.chunks.values():
            ids = [c.chunk_id for c in chunks]
            assert ids == sorted(set(ids))
        (stats,) = seen.engine.worker_stats().values()
        assert stats.queues == {}
        assert not [e for e in seen.events if e.kind in ("stream_failed", "worker_lost")]


def test_two_routes_of_one_model_run_side_by_side(watch, synthetic):
    ref = synthetic(steps=2, blocks=2)
    graph = load_spec(ref).graph
    deployment = Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="cpu") for _ in range(2)),
        routes=(
            Route(partition=make_partition("block", graph, 2), device_of_rank=(0, 1)),
            Route(partition=make_partition("step", graph, 2), device_of_rank=(1, 0)),
        ),
    )
    with watch(deployment) as seen:
        for route, name in enumerate("ab"):
            seen.engine.open_stream(
                StreamConfig(stream_id=name, release="free", seed=route, route=route)
            )
            seen.observe(name)
        for route, name in enumerate("ab"):
            seen.until_chunks(name, 10)
            seen.assert_equal_to_reference(name, seed=route)
