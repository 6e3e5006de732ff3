from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.deployment.topology import LinkSpec, Pool
from physis_core.pipeline.partition import make_partition
from physis_core.plan.placement.demands import RankDemand
from physis_core.plan.placement.search import Placement, Shortage

FAST = LinkSpec(latency_s=1e-6, bandwidth_bytes_s=1e12)
SLOW = LinkSpec(latency_s=1e-3, bandwidth_bytes_s=1e9)


def model(
    name: str = "m", *, weight: float = 10.0, kv: float = 1.0, blocks: int = 4
) -> ModelProfile:
    row = {1: 0.010, 2: 0.012, 4: 0.016}
    cost = BlockCost(weight_bytes=weight, p50_s=row, p99_s=row)
    return ModelProfile(
        name=name,
        source="measured",
        device="",
        steps=2,
        blocks=blocks,
        kv="noisy",
        window_chunks=2,
        sink_chunks=0,
        kv_bytes=kv,
        hidden_bytes=1.0,
        activation_bytes=0.0,
        shared_weight_bytes=0.0,
        block_costs=(cost,) * blocks,
    )


def pool(devices: int = 4, memory: float = 100.0, per_host: int = 2) -> Pool:
    return Pool(
        devices=devices, memory_bytes=memory, devices_per_host=per_host, fast=FAST, slow=SLOW
    )


def place(placement: Placement, stream: str, kind: str = "block", ranks: int = 2) -> bool:
    partition = make_partition(kind, placement.tables.models["m"].graph, ranks)
    demands = placement.tables.demands("m", partition, 0.5)
    found = placement.find(demands)
    if isinstance(found, Shortage):
        return False
    placement.add(stream, demands, found)
    return True


def test_weights_count_once_and_kv_for_each() -> None:
    placement = Placement(pool(devices=1), {"m": model()})
    assert place(placement, "a", "sequential", 1)
    assert placement.memory_used()[0] == pytest.approx(4 * 10 + 8)
    assert place(placement, "b", "sequential", 1)
    assert placement.memory_used()[0] == pytest.approx(4 * 10 + 16)


def test_time_is_that_of_batches() -> None:
    placement = Placement(pool(devices=1), {"m": model()})
    place(placement, "a", "sequential", 1)
    # Two steps of each of four blocks batch: 4 * 12 ms in 500 ms.
    assert placement.load()[0] == pytest.approx(4 * 0.012 / 0.5)
    place(placement, "b", "sequential", 1)
    assert placement.load()[0] == pytest.approx(4 * 0.016 / 0.5)
    alone = Placement(pool(devices=1), {"m": model()}, max_batch=1)
    place(alone, "a", "sequential", 1)
    assert alone.load()[0] == pytest.approx(8 * 0.010 / 0.5)


def test_best_fit_fills_before_it_spreads_and_neighbours_stay_near() -> None:
    placement = Placement(pool(devices=4), {"m": model()})
    for i in range(3):
        assert place(placement, f"s{i}", "sequential", 1)
    assert (placement.memory_used() > 0).sum() == 1
    split = Placement(pool(devices=4, memory=30.0), {"m": model()})
    assert place(split, "a", "block", 2)
    devices = split.placed["a"][1]
    assert split.pool.host_of(devices[0]) == split.pool.host_of(devices[1])


def test_a_shortage_names_what_is_missing() -> None:
    small = Placement(pool(devices=2, memory=20.0), {"m": model()})
    demands = small.tables.demands("m", make_partition("sequential", model().graph, 1), 0.5)
    found = small.find(demands)
    assert isinstance(found, Shortage)
    assert (found.resource, found.rank) == ("memory", 0)
    assert found.missing == pytest.approx(48 - 20)
    slow = Placement(pool(devices=2), {"m": model()})
    demands = slow.tables.demands("m", make_partition("sequential", model().graph, 1), 0.04)
    found = slow.find(demands)
    assert isinstance(found, Shortage)
    assert found.resource == "time"


def test_search_goes_where_greed_is_stuck() -> None:
    # Greed puts the first rank beside the weights it shares, on the only device that fits the
    # second.
    models = {"m": model(weight=30.0, kv=2.0, blocks=2)}
    placement = Placement(pool(devices=2, memory=70.0, per_host=2), models)
    assert place(placement, "a", "block", 2)
    assert place(placement, "b", "block", 2)
    assert len(placement.placed) == 2


def test_what_leaves_is_free_again() -> None:
    placement = Placement(pool(), {"m": model()})
    place(placement, "a")
    before = placement.memory_used().copy(), placement.load().copy()
    place(placement, "b")
    placement.remove("b")
    assert np.allclose(placement.memory_used(), before[0])
    assert np.allclose(placement.load(), before[1])
    placement.remove("a")
    assert placement.memory_used().sum() == 0.0


@settings(max_examples=40, deadline=None)
@given(
    asks=st.lists(
        st.tuples(
            st.sampled_from(["sequential", "step", "block", "stage"]),
            st.integers(1, 8),
            st.floats(0.05, 2.0),
        ),
        min_size=1,
        max_size=12,
    ),
    memory=st.floats(10.0, 200.0),
    devices=st.integers(1, 6),
)
def test_limits_hold_and_a_failed_search_leaves_no_trace(
    asks: list[tuple[str, int, float]], memory: float, devices: int
) -> None:
    placement = Placement(pool(devices=devices, memory=memory), {"m": model()})
    for i, (kind, ranks, period_s) in enumerate(asks):
        partition = make_partition(kind, model().graph, ranks)
        demands = placement.tables.demands("m", partition, period_s)
        before = placement.memory_used().copy(), placement.load().copy()
        found = placement.find(demands, nodes=50)
        assert np.allclose(placement.memory_used(), before[0])
        assert np.allclose(placement.load(), before[1])
        if not isinstance(found, Shortage):
            assert len(found) == partition.ranks
            placement.add(f"s{i}", demands, found)
        assert (placement.memory_used() <= memory * (1 + 1e-6)).all()
        assert (placement.load() <= 0.85 * (1 + 1e-6)).all()


ASKS = st.lists(
    st.tuples(
        st.sampled_from(["sequential", "step", "block", "stage"]),
        st.integers(1, 8),
        st.sampled_from([0.2, 0.5, 2.0]),
    ),
    min_size=1,
    max_size=8,
)


def every_assignment_fails(placement: Placement, demands: Sequence[RankDemand]) -> bool:
    """Tries them all."""
    devices = range(placement.pool.devices)
    for chosen in itertools.product(devices, repeat=len(demands)):
        placement.add("trial", demands, chosen)
        fits = placement.over(devices) is None
        placement.remove("trial")
        if fits:
            return False
    return True


@settings(max_examples=40, deadline=None)
@given(
    asks=ASKS,
    memory=st.floats(10.0, 80.0),
    devices=st.integers(1, 3),
    shared=st.sampled_from([0.0, 5.0]),
)
def test_what_is_refused_without_a_search_has_no_place(
    asks: list[tuple[str, int, float]], memory: float, devices: int, shared: float
) -> None:
    models = {"m": model(weight=9.0, kv=1.5, blocks=3)}
    placement = Placement(pool(devices=devices, memory=memory), models, shared_bytes=shared)
    for i, (kind, ranks, period_s) in enumerate(asks):
        partition = make_partition(kind, models["m"].graph, min(ranks, 5))
        demands = placement.tables.demands("m", partition, period_s)
        found = placement.find(demands, nodes=400)
        at_once = placement._short_as_a_whole(demands)
        if at_once is not None:
            assert found == at_once
            assert at_once.missing > 0.0
            assert every_assignment_fails(placement, demands)
        elif not isinstance(found, Shortage):
            placement.add(f"s{i}", demands, found)


@settings(max_examples=40, deadline=None)
@given(asks=ASKS, leave=st.lists(st.integers(0, 7), max_size=6), more=st.integers(0, 2))
def test_sums_that_are_kept_equal_sums_made_anew(
    asks: list[tuple[str, int, float]], leave: list[int], more: int
) -> None:
    models = {"m": model()}
    placement = Placement(pool(), models, shared_bytes=3.0, shared_overhead=0.1)
    for i, (kind, ranks, period_s) in enumerate(asks):
        partition = make_partition(kind, models["m"].graph, ranks)
        demands = placement.tables.demands("m", partition, period_s)
        found = placement.find(demands, nodes=50)
        if not isinstance(found, Shortage):
            used = placement.memory_used().sum() / 100.0 + placement.load().sum()
            growth = placement.growth(demands, found)
            placement.add(f"s{i}", demands, found)
            now = placement.memory_used().sum() / 100.0 + placement.load().sum()
            assert growth == pytest.approx(now - used)
    for i in leave:
        if f"s{i}" in placement.placed:
            placement.remove(f"s{i}")
    wider = placement.widened(more)
    anew = Placement(wider.pool, models, shared_bytes=3.0, shared_overhead=0.1)
    for stream_id, (demands, chosen) in placement.placed.items():
        anew.add(stream_id, demands, chosen)
    assert np.allclose(wider.memory_used(), anew.memory_used())
    assert np.allclose(wider.load(), anew.load())
