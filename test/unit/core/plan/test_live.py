"""The running engine's door: the planner's admission on routes that stand already."""

from __future__ import annotations

import pytest

from physis_core.plan.live import LiveAdmission, LiveRoute
from physis_core.plan.partition import make_partition
from physis_core.plan.profile import BlockCost, ModelProfile
from physis_core.plan.topology import Pool
from physis_core.runtime.stream import StreamConfig
from physis_core.types import Refused


def door(memory: float = 1e9) -> LiveAdmission:
    row = {1: 0.010, 2: 0.019}
    cost = BlockCost(weight_bytes=10.0, p50_s=row, p99_s=row)
    profile = ModelProfile(
        name="m",
        source="measured",
        device="",
        steps=2,
        blocks=4,
        kv="noisy",
        window_chunks=2,
        sink_chunks=0,
        kv_bytes=1.0,
        hidden_bytes=1.0,
        activation_bytes=0.0,
        shared_weight_bytes=0.0,
        block_costs=(cost,) * 4,
    )
    partition = make_partition("block", profile.graph, 2)
    return LiveAdmission(
        pool=Pool(devices=2, memory_bytes=memory, devices_per_host=2),
        profile=profile,
        routes=(LiveRoute(partition=partition, devices=(0, 1)),),
    )


def stream(name: str, period_s: float | None = 0.2) -> StreamConfig:
    release = "free" if period_s is None else "periodic"
    return StreamConfig(stream_id=name, period_s=period_s, release=release)  # type: ignore[arg-type]


def test_streams_enter_while_the_route_has_time() -> None:
    live = door()
    outcomes = [live.admit(stream(f"s{i}")) for i in range(8)]
    admitted = outcomes.count(None)
    # 40 ms on each device in each 200 ms, 15% of the time kept free.
    assert 2 <= admitted <= 4
    refused = outcomes[-1]
    assert isinstance(refused, Refused)
    assert refused.short_resource == "time"
    assert refused.device in ("device 0", "device 1", "shared devices")
    live.leave("s0")
    assert live.admit(stream("late")) is None


def test_memory_counts_too() -> None:
    live = door(memory=30.0)
    outcomes = [live.admit(stream(f"s{i}", 10.0)) for i in range(4)]
    # Each device: 20 of weights, and 4 for each stream.
    assert outcomes[:2] == [None, None]
    refused = outcomes[2]
    assert isinstance(refused, Refused)
    assert refused.short_resource == "memory"


def test_a_period_that_the_route_cannot_keep() -> None:
    refused = door().admit(stream("s", 0.03))
    assert isinstance(refused, Refused)
    assert "ms" in refused.nearest


def test_free_running_streams_ask_for_no_period() -> None:
    assert door().admit(stream("s", None)) is None


def test_a_name_that_comes_again_has_left() -> None:
    live = door()
    assert live.admit(stream("s")) is None
    assert live.admit(stream("s")) is None


@pytest.mark.parametrize("name", ["never", ""])
def test_leaving_twice_is_no_matter(name: str) -> None:
    door().leave(name)
