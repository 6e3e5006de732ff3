from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.pipeline.partition import make_partition
from physis_core.sim.figures import figures
from physis_core.sim.noise import Noise, NoiseSpec
from physis_core.sim.scenario import Scenario, SimStream, Stall
from physis_core.sim.simulator import Simulator
from physis_core.types import KVMode, StageGraph, UserError

LINK = LinkSpec(latency_s=0.0, bandwidth_bytes_s=1e9)


def scenario(
    *,
    steps: int = 2,
    blocks: int = 3,
    kind: str = "stage",
    devices: int = 6,
    period_s: float | None = None,
    credits: int = 20,
    chunks: int | None = 30,
    kv: KVMode = "noisy",
    cost_s: float = 0.010,
    streams: int = 1,
    **options: object,
) -> Scenario:
    graph = StageGraph(steps=steps, blocks=blocks, kv=kv)
    partition = make_partition(kind, graph, devices)
    pool = Pool(devices=devices, memory_bytes=1.0, devices_per_host=99)
    values: dict[str, object] = {
        "pool": pool,
        "costs": {b: {1: cost_s, 2: 1.2 * cost_s, 4: 1.6 * cost_s} for b in range(blocks)},
        "streams": tuple(
            SimStream(
                stream_id=f"s{i}",
                graph=graph,
                device_of=partition.rank_of,
                block_keys=tuple(range(blocks)),
                period_s=period_s,
                credits=credits,
                max_chunks=chunks,
            )
            for i in range(streams)
        ),
        "end_s": 100.0,
        "max_batch": 1,
    }
    return Scenario(**{**values, **options})  # type: ignore[arg-type]


def run(spec: Scenario) -> Simulator:
    simulator = Simulator(spec)
    simulator.run()
    return simulator


def exits(simulator: Simulator, stream: int = 0) -> list[float]:
    return [c.exit_s for c in simulator.traces[stream].chunks if not math.isnan(c.exit_s)]


def test_one_stage_a_device_delivers_at_the_pace_of_one_stage() -> None:
    times = exits(run(scenario()))
    assert len(times) == 30
    assert times[0] == pytest.approx(0.060)
    assert [b - a for a, b in zip(times, times[1:])] == pytest.approx([0.010] * 29)


def test_the_slowest_stage_sets_the_pace() -> None:
    spec = scenario()
    slow = replace(spec, costs={**spec.costs, 1: {1: 0.030}})
    times = exits(run(slow))
    # Block 1 is on two devices, one per step.
    assert times[-1] - times[-2] == pytest.approx(0.030)


def test_one_device_runs_everything_one_after_the_other() -> None:
    times = exits(run(scenario(kind="sequential", devices=1, credits=1)))
    assert times[-1] - times[-2] == pytest.approx(0.060)


def test_steps_of_one_block_batch_on_one_device() -> None:
    alone = exits(run(scenario(kind="sequential", devices=1, credits=2)))
    together = exits(run(scenario(kind="sequential", devices=1, credits=2, max_batch=2)))
    assert alone[-1] - alone[0] == pytest.approx(29 * 0.060)
    # Two chunks in flight, one step apart: each pass of 3 blocks at 12 ms gives one chunk.
    assert (together[20] - together[10]) / 10 == pytest.approx(0.036)


def test_clean_kv_is_serial() -> None:
    times = exits(run(scenario(kv="clean", kind="block", devices=3)))
    # A chunk enters when the one before has passed block 0 of its clean pass: 7 stages.
    assert times[-1] - times[-2] == pytest.approx(0.070)


def test_credits_bound_what_waits_between_devices() -> None:
    spec = scenario(chunks=40, boundary_credits=2)
    slow_last = replace(spec, costs={**spec.costs, 2: {1: 0.100}})
    simulator = Simulator(slow_last)
    longest = 0

    def look() -> None:
        nonlocal longest
        for device in simulator.devices[1:]:
            longest = max([longest, *(len(slot.fifo) for slot in device.waiting)])
        if simulator.clock.now_s() < 3.0:
            simulator.at(simulator.clock.now_s() + 0.01, look)

    simulator.at(0.0, look)
    simulator.run()
    assert longest == 2


def test_a_hop_costs_its_latency_and_its_bytes() -> None:
    spec = scenario(chunks=1)
    far = replace(
        spec,
        pool=replace(spec.pool, fast=LinkSpec(latency_s=0.001, bandwidth_bytes_s=1e6)),
        streams=(replace(spec.streams[0], hidden_bytes=500.0),),
    )
    simulator = run(far)
    assert exits(simulator)[0] == pytest.approx(0.060 + 5 * (0.001 + 0.0005))
    assert sum(edge.bytes for edge in simulator.edges.values()) == 5 * 500.0


def test_a_stall_is_recovered_from_without_loss_or_reordering() -> None:
    simulator = run(scenario(chunks=60, stalls=(Stall(device=2, at_s=0.2, seconds=0.5),)))
    times = exits(simulator)
    assert len(times) == 60
    assert times == sorted(times)
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert max(gaps) == pytest.approx(0.51, abs=0.02)
    assert gaps[-1] == pytest.approx(0.010)


def test_a_period_below_the_pace_drops_chunks_and_raises_the_alarm() -> None:
    spec = scenario(period_s=0.005, credits=8, chunks=None, end_s=10.0, overload_s=0.05)
    simulator = run(spec)
    assert simulator.traces[0].dropped["too many chunks in flight"] > 500
    assert simulator.overload[-1][1].level in ("rising", "overloaded")


def test_free_running_streams_take_turns_and_stay_behind_a_stream_with_a_period() -> None:
    spec = scenario(kind="sequential", devices=1, streams=3, chunks=None, credits=2, end_s=12.0)
    paced, first, second = spec.streams
    streams = (
        replace(paced, period_s=0.2, expected_response_s=0.08),
        first,
        # Comes later with smaller numbers: the first one must not wait until it has caught up.
        replace(second, open_s=4.0),
    )
    simulator = run(replace(spec, streams=streams))
    late = [c for c in simulator.traces[0].chunks if c.exit_s > c.deadline_s]
    assert not late and not simulator.traces[0].dropped
    done = [sum(1 for at_s in exits(simulator, i) if at_s > 4.5) for i in (1, 2)]
    assert min(done) > 30 and abs(done[0] - done[1]) <= 2
    assert all(c.deadline_s == math.inf for c in simulator.traces[1].chunks)


def test_streams_that_begin_together_come_out_one_after_the_other() -> None:
    """And not all of them at the end, as where their chunks take turns."""
    simulator = run(scenario(kind="step", devices=2, streams=3, period_s=0.18))
    responses_s = [
        statistics.median(chunk.exit_s - chunk.release_s for chunk in trace.chunks)
        for trace in simulator.traces
    ]
    # 30 ms on each of the two devices.
    assert sorted(responses_s) == pytest.approx([0.06, 0.09, 0.12])


def test_streams_close_and_leave_nothing_behind() -> None:
    spec = scenario(period_s=0.020, chunks=None, end_s=5.0)
    simulator = Simulator(spec)
    simulator.at(1.0, lambda: simulator.close("s0"))
    simulator.run()
    trace = simulator.traces[0]
    assert len(exits(simulator)) == len(trace.chunks)
    assert max(c.release_s for c in trace.chunks) <= 1.0
    assert all(not device.waiting and not device.running for device in simulator.devices)


def test_the_same_seed_gives_the_same_run_and_another_another() -> None:
    noisy = scenario(noise=NoiseSpec(p99_ratio=1.3), streams=2, max_batch=4)
    first, again = exits(run(noisy)), exits(run(noisy))
    assert first == again
    assert first != exits(run(replace(noisy, seed=1)))


def test_measured_factors_are_drawn_as_they_are() -> None:
    noise = Noise(NoiseSpec(factors=(0.9, 1.0, 1.3)), seed=0)
    drawn = [noise.factor(0, chunk, 0) for chunk in range(3000)]
    assert set(drawn) == {0.9, 1.0, 1.3}
    assert 900 < drawn.count(1.3) < 1100
    with pytest.raises(UserError, match="factors"):
        NoiseSpec(factors=(1.0,), p99_ratio=1.2)
    with pytest.raises(UserError, match="factors"):
        NoiseSpec(factors=(1.0, math.nan))


def test_a_chunk_enters_later_and_a_batch_starts_later_where_that_takes_time() -> None:
    one = scenario(kind="sequential", devices=1, chunks=1, per_entry_s=0.004, per_batch_s=0.001)
    simulator = run(one)
    # Six blocks of 10 ms, each after 1 ms.
    assert exits(simulator)[0] == pytest.approx(0.004 + 6 * 0.011)
    assert simulator.devices[0].busy_s == pytest.approx(0.060)


def test_a_simulation_goes_on_where_it_stopped() -> None:
    spec = scenario(kind="sequential", devices=1, credits=2, chunks=20)
    whole, parts = run(spec), Simulator(spec)
    for end_s in (0.1, 0.35, 0.8, 100.0):
        parts.run(end_s)
    assert exits(parts) == exits(whole)


def test_noise_has_the_median_and_tail_that_it_says() -> None:
    noise = Noise(NoiseSpec(p99_ratio=1.5), seed=3)
    draws = sorted(noise.factor(s, c, t) for s in range(3) for c in range(200) for t in range(40))
    assert draws[len(draws) // 2] == pytest.approx(1.0, abs=0.02)
    assert draws[int(0.99 * len(draws))] == pytest.approx(1.5, abs=0.05)


def test_figures_have_five_groups_and_tails() -> None:
    spec = scenario(streams=2, kind="block", devices=3, max_batch=4, warmup_s=0.1, chunks=40)
    out = figures(run(spec))
    assert {"stages", "edges", "devices", "batches", "streams"} <= set(out)
    assert len(out["stages"]) == 6
    assert out["batches"]["mean_size"] > 1.0
    assert out["batches"]["across_streams"] > 0
    assert out["batches"]["gain_s"] > 0.0
    for row in out["streams"]:
        assert row["output_interval_ms"]["p999"] >= row["output_interval_ms"]["p50"] > 0.0
    busy = [device["busy_share"] for device in out["devices"]]
    assert all(0.0 < share <= 1.0 for share in busy)


def test_bad_scenarios_name_the_field() -> None:
    with pytest.raises(UserError, match="end_s"):
        scenario(end_s=math.inf)
    with pytest.raises(UserError, match="device_of"):
        scenario(pool=Pool(devices=2, memory_bytes=1.0, devices_per_host=8))
    with pytest.raises(UserError, match="costs"):
        scenario(costs={0: {1: 1.0}})
    with pytest.raises(UserError, match="p99_ratio"):
        NoiseSpec(p99_ratio=0.5)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["sequential", "step", "block", "stage", "grouped"]),
    devices=st.integers(1, 8),
    steps=st.integers(1, 3),
    blocks=st.integers(1, 4),
    kv=st.sampled_from(["noisy", "clean"]),
    streams=st.integers(1, 3),
    credits=st.integers(1, 12),
    boundary=st.integers(1, 3),
    max_batch=st.sampled_from([1, 4]),
    jitter=st.sampled_from([1.0, 1.5]),
    seed=st.integers(0, 100),
)
def test_every_chunk_comes_out_in_order_whatever_the_shape(
    kind: str,
    devices: int,
    steps: int,
    blocks: int,
    kv: KVMode,
    streams: int,
    credits: int,
    boundary: int,
    max_batch: int,
    jitter: float,
    seed: int,
) -> None:
    if kv == "clean" and kind not in ("sequential", "block"):
        kind = "block"
    spec = scenario(
        steps=steps,
        blocks=blocks,
        kind=kind,
        devices=devices,
        kv=kv,
        streams=streams,
        credits=credits,
        boundary_credits=boundary,
        max_batch=max_batch,
        noise=NoiseSpec(p99_ratio=jitter),
        seed=seed,
        chunks=12,
    )
    simulator = run(spec)
    for i in range(streams):
        times = exits(simulator, i)
        assert len(times) == 12
        assert times == sorted(times)
    tasks, lost = simulator.log.take()
    assert lost == 0
    assert len(tasks) == simulator.tasks == 12 * streams * spec.streams[0].graph.stages
    # A device runs one batch at a time.
    for index in range(devices):
        mine = tasks[tasks["device"] == index]
        spans = sorted({(float(t["start_s"]), float(t["end_s"])) for t in mine})
        assert all(a[1] <= b[0] + 1e-12 for a, b in zip(spans, spans[1:]))
