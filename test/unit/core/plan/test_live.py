"""The running engine's door: the planner's admission on routes that stand already."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from physis_core.deployment.deployment import Deployment, DeviceSpec, Route, simple_deployment
from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.deployment.topology import Pool
from physis_core.engine.stream import StreamConfig
from physis_core.model.registry import ModelRef
from physis_core.pipeline.partition import make_partition
from physis_core.plan.live import LiveAdmission, LiveRoute, live_admission
from physis_core.types import Refused, UserError


def profile() -> ModelProfile:
    row = {1: 0.010, 2: 0.019}
    cost = BlockCost(weight_bytes=10.0, p50_s=row, p99_s=row)
    return ModelProfile(
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


def door(memory: float = 1e9) -> LiveAdmission:
    partition = make_partition("block", profile().graph, 2)
    return LiveAdmission(
        pool=Pool(devices=2, memory_bytes=memory, devices_per_host=2),
        profiles={"model": profile()},
        routes=(LiveRoute(model="model", partition=partition, devices=(0, 1)),),
    )


def stream(name: str, period_s: float | None = 0.2) -> StreamConfig:
    release = "free" if period_s is None else "periodic"
    return StreamConfig(stream_id=name, period_s=period_s, release=release)  # type: ignore[arg-type]


def test_streams_enter_while_the_route_has_time() -> None:
    live = door()
    first = stream("s0")
    outcomes = [live.admit(first)] + [live.admit(stream(f"s{i}")) for i in range(1, 8)]
    admitted = outcomes.count(None)
    # 40 ms on each device in each 200 ms, 15% of the time kept free.
    assert 2 <= admitted <= 4
    refused = outcomes[-1]
    assert isinstance(refused, Refused)
    assert refused.short_resource == "time"
    assert refused.device in ("device 0", "device 1", "shared devices")
    assert "streams that it carries now" in refused.nearest
    assert "period" in refused.nearest
    live.leave(first)
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
    offered = re.fullmatch(r"period ([\d.]+) ms", refused.nearest)
    assert offered is not None
    assert door().admit(stream("s", float(offered[1]) / 1e3)) is None


def test_the_longer_period_that_a_full_route_offers_is_admitted() -> None:
    live = door()
    count = 0
    while (refused := live.admit(stream(f"s{count}"))) is None:
        count += 1
    offered = re.match(r"period ([\d.]+) ms, or no more than the", refused.nearest)
    assert offered is not None
    assert live.admit(stream("late", float(offered[1]) / 1e3)) is None


def test_free_running_streams_ask_for_no_period() -> None:
    assert door().admit(stream("s", None)) is None


def test_a_name_is_free_again_when_its_stream_has_left() -> None:
    live = door()
    first, second = stream("s"), stream("s")
    assert live.admit(first) is None
    refused = live.admit(second)
    assert isinstance(refused, Refused)
    assert "is open already" in refused.reason
    # Whoever was refused holds nothing that it could give back.
    live.leave(second)
    assert live.admit(second) is not None
    live.leave(first)
    assert live.admit(second) is None
    live.leave(first)
    assert live.admit(stream("s")) is not None


def test_a_response_that_the_route_cannot_give_is_refused() -> None:
    live = replace(door(), max_response_s=0.05)
    refused = live.admit(stream("s", 1.0))
    assert isinstance(refused, Refused)
    assert refused.nearest == "response 80 ms"


def test_places_are_what_has_time_of_its_own() -> None:
    graph = profile().graph
    route = Route(partition=make_partition("stage", graph, 4), device_of_rank=(0, 1, 2, 3))
    model = ModelRef(family="synthetic", config={"steps": 2, "blocks": 4})

    def places(*devices: DeviceSpec, costs: dict[int, dict[int, float]] | None = None) -> object:
        workers = max(d.worker for d in devices) + 1
        deployment = Deployment(
            models={"model": model}, devices=devices, routes=(route,), workers=workers, costs=costs
        )
        live = live_admission(deployment, {"model": profile()})
        return live.pool.names, live.routes[0].devices

    cpu = [DeviceSpec(kind="cpu", worker=w) for w in (0, 0, 1, 1)]
    assert places(*cpu) == (("worker 0", "worker 1"), (0, 0, 1, 1))
    gpu = [DeviceSpec(kind=f"cuda:{n}", worker=w) for n, w in ((0, 0), (1, 0), (0, 1), (1, 1))]
    assert places(*gpu) == (("cuda:0", "cuda:1"), (0, 1, 0, 1)), "two workers of one GPU share it"
    emulated = [DeviceSpec(kind="emulated") for _ in range(4)]
    costs = {block: {1: 0.01} for block in range(4)}
    assert places(*emulated, costs=costs)[1] == (0, 1, 2, 3)  # type: ignore[index]


def test_a_profile_of_another_model_is_refused() -> None:
    deployment = simple_deployment(ModelRef(family="synthetic", config={"steps": 3, "blocks": 4}))
    with pytest.raises(UserError, match="profile"):
        live_admission(deployment, {"model": profile()})
