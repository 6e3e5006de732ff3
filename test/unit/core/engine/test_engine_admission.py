"""A running engine asks the planner's admission before it opens a stream, and tells it who left."""

from __future__ import annotations

from physis_core.deployment.deployment import Deployment, simple_deployment
from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.engine.stream import StreamConfig, StreamHandle
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.plan.live import live_admission
from physis_core.types import Refused

MODEL = ModelRef(
    family="synthetic", config={"steps": 2, "blocks": 2, "tokens": 4, "dim": 16, "heads": 2}
)
ROW = {1: 0.010, 2: 0.019}
COSTS = {0: ROW, 1: ROW}


def deployment() -> Deployment:
    return simple_deployment(
        MODEL, partition="block", devices=2, device_kind="emulated", costs=COSTS, max_batch=2
    )


def profile(kv_bytes: float = 1.0) -> ModelProfile:
    spec = load_spec(MODEL)
    cost = BlockCost(weight_bytes=10.0, p50_s=ROW, p99_s=ROW)
    return ModelProfile(
        name="small",
        source="measured",
        device="",
        steps=spec.graph.steps,
        blocks=spec.graph.blocks,
        kv=spec.graph.kv,
        window_chunks=spec.window_chunks,
        sink_chunks=spec.sink_chunks,
        kv_bytes=kv_bytes,
        hidden_bytes=1.0,
        activation_bytes=0.0,
        shared_weight_bytes=0.0,
        block_costs=(cost, cost),
    )


def stream(name: str, period_s: float = 0.1, **more: object) -> StreamConfig:
    return StreamConfig(stream_id=name, period_s=period_s, **more)  # type: ignore[arg-type]


def test_streams_are_refused_when_time_is_short_and_admitted_when_one_has_left(watch) -> None:
    live = live_admission(deployment(), {"model": profile()})
    with watch(deployment(), admission=live) as running:
        opened = [running.engine.open_stream(stream(f"s{i}")) for i in range(8)]
        handles = [one for one in opened if isinstance(one, StreamHandle)]
        # 20 ms on each device in each 100 ms, 15% of the time kept free.
        assert 2 <= len(handles) <= 4
        refused = opened[-1]
        assert isinstance(refused, Refused)
        assert refused.short_resource == "time"
        assert refused.device in ("device 0", "device 1", "shared devices")
        assert "carries now" in refused.nearest
        # Those that were admitted run.
        running.observe("s0")
        running.until_chunks("s0", 2)
        again = running.engine.open_stream(stream("s0"))
        assert isinstance(again, Refused)
        assert "is open already" in again.reason
        assert running.engine.close_stream("s1")
        assert isinstance(running.engine.open_stream(stream("late")), StreamHandle)
        assert isinstance(running.engine.open_stream(stream("too late")), Refused)


def test_memory_is_counted(watch) -> None:
    live = live_admission(deployment(), {"model": profile(kv_bytes=3.0)}, memory_bytes=23.0)
    with watch(deployment(), admission=live) as running:
        # Each device: 10 of weights, and 6 for each stream.
        assert isinstance(running.engine.open_stream(stream("a", 1.0)), StreamHandle)
        assert isinstance(running.engine.open_stream(stream("b", 1.0)), StreamHandle)
        refused = running.engine.open_stream(stream("c", 1.0))
        assert isinstance(refused, Refused)
        assert refused.short_resource == "memory"
        assert refused.nearest == "no more than the 2 streams that it carries now"


def test_what_the_engine_refuses_holds_no_place(watch) -> None:
    live = live_admission(deployment(), {"model": profile(kv_bytes=3.0)}, memory_bytes=17.0)
    with watch(deployment(), admission=live) as running:
        unknown = running.engine.open_stream(stream("a", 1.0, route=7))
        assert isinstance(unknown, Refused)
        wrong = running.engine.open_stream(stream("a", 1.0, margin_s=-1.0))
        assert isinstance(wrong, Refused)
        assert "margin_s" in wrong.reason
        assert isinstance(running.engine.open_stream(stream("a", 1.0)), StreamHandle)
        assert isinstance(running.engine.open_stream(stream("b", 1.0)), Refused)


def test_a_stream_that_fails_gives_its_place_back(watch) -> None:
    live = live_admission(deployment(), {"model": profile(kv_bytes=3.0)}, memory_bytes=17.0)
    with watch(deployment(), admission=live) as running:
        assert isinstance(running.engine.open_stream(stream("a", 1.0)), StreamHandle)
        running.engine._do(lambda: running.engine._loop.streams.cancel("a", "lost its device"))
        assert isinstance(running.engine.open_stream(stream("b", 1.0)), StreamHandle)
