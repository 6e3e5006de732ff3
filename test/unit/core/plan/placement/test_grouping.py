from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.pipeline.partition import make_partition
from physis_core.plan.placement.grouping import Planner, compositions, pareto, splits_of
from physis_core.types import KVMode, UserError


def profile(
    steps: int = 4, blocks: int = 6, batch_gain: float = 0.5, kv: KVMode = "noisy"
) -> ModelProfile:
    row = {n: 1e-3 * (batch_gain + (1 - batch_gain) * n) for n in (1, 2, 4, 8)}
    cost = BlockCost(weight_bytes=10.0, p50_s=row, p99_s={n: 1.1 * s for n, s in row.items()})
    return ModelProfile(
        name="m",
        source="measured",
        device="",
        steps=steps,
        blocks=blocks,
        kv=kv,
        window_chunks=4,
        sink_chunks=0,
        kv_bytes=3.0,
        hidden_bytes=1e6,
        activation_bytes=0.0,
        shared_weight_bytes=0.0,
        block_costs=(cost,) * blocks,
    )


def pool(devices: int = 24, memory: float = 1e9) -> Pool:
    link = LinkSpec(latency_s=1e-5, bandwidth_bytes_s=1e11)
    return Pool(devices=devices, memory_bytes=memory, devices_per_host=8, fast=link, slow=link)


def test_compositions_are_all_and_sum_up() -> None:
    assert len(compositions(4)) == 8
    assert all(sum(split) == 4 for split in compositions(4))


@given(st.integers(1, 60))
def test_many_passes_have_few_splits_and_few_have_all(passes: int) -> None:
    splits = splits_of(passes)
    assert len(set(splits)) == len(splits)
    assert all(sum(split) == passes and min(split) >= 1 for split in splits)
    assert {len(split) for split in splits} == set(range(1, passes + 1)), "any number of groups"
    if passes <= 8:
        assert sorted(splits) == sorted(compositions(passes))
    else:
        assert len(splits) <= 2 * passes


def test_thirty_steps_are_planned() -> None:
    table = Planner(profile(steps=30), pool()).period_table(24)
    assert [plan.devices for plan in table] == list(range(1, 25))
    intervals = [plan.interval_s for plan in table]
    assert intervals[-1] < intervals[0] / 15


def test_the_extremes_are_the_known_ones() -> None:
    planner = Planner(profile(), pool())
    table = planner.period_table(24)
    assert [plan.devices for plan in table] == list(range(1, 25))
    last = table[-1]
    assert last.partition.rank_of == make_partition("stage", profile().graph, 24).rank_of
    # One stage a device: the interval is one stage.
    assert last.interval_p50_s == pytest.approx(1e-3)
    assert last.relaxed_response_s == pytest.approx(24e-3 + 23 * (1e-5 + 1e-5))
    # One device: four steps of each block in one batch.
    assert table[0].interval_p50_s == pytest.approx(6 * 1e-3 * (0.5 + 0.5 * 4))


@settings(max_examples=25, deadline=None)
@given(
    steps=st.integers(1, 4),
    blocks=st.integers(1, 6),
    gain=st.floats(0.0, 0.9),
    devices=st.integers(1, 24),
)
def test_every_candidate_is_a_partition_within_its_bounds(
    steps: int, blocks: int, gain: float, devices: int
) -> None:
    planner = Planner(profile(steps, blocks, gain), pool())
    found = planner.candidates(devices)
    assert bool(found) == (devices <= steps * blocks)
    for plan in found:
        assert plan.devices == devices
        assert plan.interval_s >= plan.interval_p50_s
        # No partition is faster than its slowest stage, or than a perfect share of the batched
        # work.
        assert plan.interval_p50_s >= 1e-3 - 1e-12
        assert plan.relaxed_response_s >= steps * blocks * 1e-3 - 1e-12
        assert plan.response_s >= plan.relaxed_response_s - 1e-12


def test_more_devices_never_make_the_best_interval_worse_by_much() -> None:
    table = Planner(profile(), pool()).period_table(24)
    best = float("inf")
    for plan in table:
        best = min(best, plan.interval_s)
        assert plan.interval_s <= 2 * best


def test_questions_about_an_slo() -> None:
    planner = Planner(profile(), pool())
    few = planner.fewest_devices(6e-3, float("inf"), 24)
    assert few is not None
    assert few.interval_s <= 6e-3
    assert not any(planner.fitting(n, 6e-3, float("inf")) for n in range(1, few.devices))
    assert planner.fewest_devices(0.5e-3, float("inf"), 24) is None
    soon = planner.shortest_response(6e-3, 24)
    assert soon is not None
    assert planner.response_at(soon, 6e-3) <= planner.response_at(few, 6e-3)


def test_what_does_not_fit_is_left_out_and_explained() -> None:
    # 6 blocks of weights and 24 KV caches need 132 bytes on one device.
    planner = Planner(profile(), pool(memory=100))
    assert planner.candidates(1) == []
    assert planner.period_table(24)[0].devices == 2
    with pytest.raises(UserError, match="GiB"):
        planner.shortest_interval(1)


def test_clean_kv_is_serial_whatever_the_devices() -> None:
    planner = Planner(profile(kv="clean"), pool())
    table = planner.period_table(24)
    assert table[-1].devices == 6
    # A chunk enters when the one before has left block 0 in its clean pass.
    assert all(plan.interval_p50_s >= 25e-3 for plan in table)


def test_the_front_is_not_beaten() -> None:
    planner = Planner(profile(), pool())
    every = [plan for n in range(1, 25) for plan in planner.candidates(n)]
    front = pareto(every)
    assert 1 <= len(front) <= len(every)
    shortest = min(every, key=lambda plan: plan.interval_s)
    assert any(plan.interval_s == shortest.interval_s for plan in front)
    for plan in front:
        assert not any(
            other.interval_s < plan.interval_s
            and other.response_s <= plan.response_s
            and other.devices <= plan.devices
            and other.memory_bytes <= plan.memory_bytes
            and other.devices * other.interval_s <= plan.devices * plan.interval_s
            for other in every
        )
