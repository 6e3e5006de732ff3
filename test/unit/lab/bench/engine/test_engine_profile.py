"""What is read out of task records, with a simulated run standing in for the engine's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.observe.trace import RunTrace
from physis_core.pipeline.partition import make_partition
from physis_core.sim.noise import NoiseSpec, SpeedTrace
from physis_core.sim.scenario import Scenario, SimStream
from physis_core.sim.simulator import Simulator
from physis_core.types import StageGraph
from physis_lab.bench.engine.engine_profile import parts_of, profile_of, speed_of, with_sizes
from physis_lab.session.engine_run import EngineRun

GRAPH = StageGraph(steps=2, blocks=3)
COSTS = {0: {1: 0.010}, 1: {1: 0.020}, 2: {1: 0.015}}


def simulated(
    *, credits: int = 4, kind: str = "block", devices: int = 3, **options: object
) -> Simulator:
    partition = make_partition(kind, GRAPH, devices)
    hop = LinkSpec(latency_s=0.001, bandwidth_bytes_s=float("inf"))
    pool = Pool(devices=3, memory_bytes=1.0, devices_per_host=3, fast=hop, slow=hop)
    stream = SimStream(
        stream_id="s",
        graph=GRAPH,
        device_of=partition.rank_of,
        block_keys=(0, 1, 2),
        period_s=None,
        credits=credits,
        max_chunks=40,
    )
    simulator = Simulator(
        Scenario(
            pool=pool,
            costs=COSTS,
            streams=(stream,),
            end_s=100.0,
            max_batch=1,
            **options,  # type: ignore[arg-type]
        )
    )
    simulator.run()
    return simulator


def run_of(tasks: Any, costs_s: dict[int, dict[int, float]] | None = None) -> EngineRun:
    tasks["source"][tasks["stage"] == 0] = -1
    trace = RunTrace(tasks=tasks, chunks=tasks[:0], edges=(), devices=(), records_lost=0)
    return EngineRun(streams=(), trace=trace, costs_s=costs_s or {})


def lone(**options: object) -> EngineRun:
    """One chunk under way at a time."""
    return run_of(simulated(credits=1, **options).log.take()[0])


def test_the_profile_of_a_run_is_what_went_into_it() -> None:
    simulator = simulated(
        noise=NoiseSpec(factors=(0.9, 1.0, 1.0, 1.0, 1.2)),
        per_batch_s=0.0005,
        per_entry_s=0.002,
    )
    tasks, _ = simulator.log.take()
    # Whoever computes looks at its mail afterwards: no way is measured there.
    tasks["sent_s"] -= 0.05
    found = profile_of([run_of(tasks, {0: {1: 0.01, 2: 0.016}})], [lone(per_entry_s=0.002)], 3)
    for block, row in COSTS.items():
        assert found.costs[block][1] == pytest.approx(row[1], rel=1e-6)
    # A size that did not occur: in proportion to what was measured at the start.
    assert found.costs[0][2] == pytest.approx(0.016)
    assert set(found.costs[1]) == {1}
    assert min(found.factors) == pytest.approx(0.9)
    assert max(found.factors) == pytest.approx(1.2)
    assert found.per_batch_s == pytest.approx(0.0005)
    assert found.per_hop_s == pytest.approx(0.001)
    assert found.per_entry_s == pytest.approx(0.002)


def test_what_sending_takes_is_told_from_what_dispatch_takes() -> None:
    simulator = simulated(kind="step", devices=2, per_batch_s=0.0005, per_send_s=0.0002)
    found = profile_of([run_of(simulator.log.take()[0])], [lone()], 3)
    assert found.per_batch_s == pytest.approx(0.0005)
    assert found.per_send_s == pytest.approx(0.0002)


def test_chunks_of_one_batch_leave_one_after_the_other() -> None:
    partition = make_partition("block", GRAPH, 3)
    # One message is the unit of what an edge carries.
    hop = LinkSpec(latency_s=0.001, bandwidth_bytes_s=1 / 0.0004)
    pool = Pool(devices=3, memory_bytes=1.0, devices_per_host=3, fast=hop, slow=hop)
    streams = tuple(
        SimStream(
            stream_id=f"s{i}",
            graph=GRAPH,
            device_of=partition.rank_of,
            block_keys=(0, 1, 2),
            period_s=None,
            credits=4,
            max_chunks=40,
            hidden_bytes=1.0,
        )
        for i in range(2)
    )
    costs = {block: {1: 0.010, 2: 0.012} for block in range(3)}
    simulator = Simulator(
        Scenario(pool=pool, costs=costs, streams=streams, end_s=100.0, max_batch=2)
    )
    simulator.run()
    tasks, _ = simulator.log.take()
    found = profile_of([run_of(tasks, costs)], [lone()], 3)
    assert found.per_message_s == pytest.approx(0.0004)
    # Of a pair that meets an idle device the first one runs alone: it does not wait for the other.
    pair = tasks[(tasks["chunk"] == 0) & (tasks["stage"] < 2)]
    assert pair["size"][pair["stage"] == 0].tolist() == [2, 2]
    assert pair["size"][pair["stage"] == 1].tolist() == [1, 1]


def test_parts_add_up_to_the_response() -> None:
    simulator = simulated(per_batch_s=0.0005, per_entry_s=0.002)
    tasks, _ = simulator.log.take()
    parts = parts_of(tasks, GRAPH.stages, 8)
    responses = [c.exit_s - c.release_s for c in simulator.traces[0].chunks[8:]]
    assert parts.compute_s == pytest.approx(2 * 0.045)
    # Each step's last device is not its first, so every stage but the first is a hop.
    assert parts.link_s == pytest.approx(0.002 + 5 * 0.001)
    whole = parts.compute_s + parts.queue_s + parts.link_s
    assert whole == pytest.approx(float(np.mean(responses)))


def test_a_row_keeps_what_was_seen_and_takes_the_rest_in_proportion() -> None:
    assert with_sizes({1: 0.02, 4: 0.05}, {}) == {1: 0.02, 4: 0.05}
    row = with_sizes({4: 0.06}, {1: 0.01, 2: 0.015, 4: 0.03})
    assert row == {4: 0.06, 1: pytest.approx(0.02), 2: pytest.approx(0.03)}


@pytest.mark.parametrize(
    ("busy", "alone", "said"), [(8, 40, "often enough"), (40, 3, "single-chunk")]
)
def test_a_run_that_is_too_short_says_so(busy: int, alone: int, said: str) -> None:
    tasks, _ = simulated().log.take()
    ways = lone()
    ways.trace.tasks["chunk"][ways.trace.tasks["chunk"] >= alone] = 0
    with pytest.raises(ValueError, match=said):
        profile_of([run_of(tasks[tasks["chunk"] < busy])], [ways], 3)


def test_the_speed_of_a_run_is_what_slowed_it_and_a_profile_is_free_of_it() -> None:
    slow = SpeedTrace(step_s=0.5, factors={0: (1.0, 1.5), 1: (1.0, 1.0, 0.8)})
    noise = NoiseSpec(factors=(0.95, 1.0, 1.0, 1.0, 1.05))
    tasks, _ = simulated(credits=2, speed=slow, noise=noise).log.take()
    found = speed_of(tasks, COSTS, 3, from_s=0.0)
    assert found.step_s == 0.5
    assert found.factors[0][:3] == pytest.approx((1.0, 1.5, 1.5), rel=0.06)
    assert found.factors[1][:3] == pytest.approx((1.0, 1.0, 0.8), rel=0.06)
    assert found.factors[2][:3] == pytest.approx((1.0, 1.0, 1.0), rel=0.06)
    profile = profile_of([run_of(tasks)], [lone()], 3)
    # But for the half seconds within which the speed changed.
    assert np.mean(np.abs(np.array(profile.factors) - 1.0) < 0.08) > 0.8


def test_where_nothing_ran_the_speed_is_that_of_the_nearest() -> None:
    tasks, _ = simulated().log.take()
    late = tasks.copy()
    for name in ("sent_s", "ready_s", "start_s", "end_s"):
        late[name] += 5.0
    found = speed_of(np.concatenate([tasks, late]), COSTS, 3, from_s=-1.0)
    for factors in found.factors.values():
        assert factors == pytest.approx((1.0,) * len(factors))
