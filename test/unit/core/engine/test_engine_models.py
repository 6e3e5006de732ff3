"""Several models in one engine: devices are shared, batches and outputs are each model's own."""

from __future__ import annotations

import numpy as np
import pytest

from physis_core.deployment.deployment import Deployment, DeviceSpec, Route
from physis_core.engine.stream import StreamConfig
from physis_core.model.registry import ModelRef, describe
from physis_core.pipeline.partition import make_partition

MODELS = {
    "small": ModelRef(
        family="synthetic", config={"steps": 2, "blocks": 2, "tokens": 3, "dtype": "float64"}
    ),
    "large": ModelRef(
        family="synthetic",
        config={"steps": 3, "blocks": 4, "dim": 24, "heads": 2, "kv": "clean", "dtype": "float64"},
    ),
}
STREAMS = {"a": 0, "b": 1, "c": 0, "d": 1}
"""Route by stream."""


def deployment(workers: int, **options: object) -> Deployment:
    return Deployment(
        models=MODELS,
        devices=tuple(DeviceSpec(kind="cpu", worker=min(n, max(workers - 1, 0))) for n in range(2)),
        routes=tuple(
            Route(
                partition=make_partition("block", describe(ref).graph, 2),
                # Opposite ways, so that each device is some model's first and another one's last.
                device_of_rank=(0, 1) if name == "small" else (1, 0),
                model=name,
            )
            for name, ref in MODELS.items()
        ),
        workers=workers,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("workers", "max_batch"), [(0, 4), (2, 1)])
def test_streams_of_two_models_share_devices_and_equal_their_references(watch, workers, max_batch):
    with watch(deployment(workers, max_batch=max_batch)) as seen:
        for number, (name, route) in enumerate(STREAMS.items()):
            opened = seen.engine.open_stream(
                StreamConfig(stream_id=name, release="free", route=route, seed=number)
            )
            assert opened.epoch == 0
            seen.observe(name, route=route)
        for name in STREAMS:
            seen.until_chunks(name, 12)
        tasks = seen.tasks()
        for number, (name, route) in enumerate(STREAMS.items()):
            model = list(MODELS)[route]
            seen.assert_equal_to_reference(name, seed=number, exact=max_batch == 1, model=model)
    model_of = dict(enumerate(STREAMS.values(), start=1))
    for device in (0, 1):
        there = tasks[tasks["device"] == device]
        models = np.array([model_of[handle] for handle in there["stream"]])
        assert set(models) == {0, 1}, "both models run on it"
        for batch in np.unique(there["batch"]):
            assert len(set(models[there["batch"] == batch])) == 1, "of one model alone"
    if max_batch > 1:
        assert tasks["size"].max() > 1


def test_a_model_is_loaded_once_on_a_device_whatever_its_streams_and_routes(watch):
    with watch(deployment(0)) as seen:
        held = {c["device"]: c["weight_bytes"] for c in seen.engine.trace().devices}
        specs = seen.engine.specs
    for device, blocks in (
        (0, {"small": (0,), "large": (2, 3)}),
        (1, {"small": (1,), "large": (0, 1)}),
    ):
        assert held[device] == sum(
            sum(specs[name].block_weight_bytes[b] for b in mine) + specs[name].shared_weight_bytes
            for name, mine in blocks.items()
        )


def test_costs_are_measured_for_each_block_of_each_model(watch):
    with watch(deployment(0)) as seen:
        assert sorted(seen.engine.measured_costs) == [0, 1, 2, 3, 4, 5]


def test_a_worker_of_two_models_is_lost_and_both_go_on(watch):
    lost = deployment(2, recovery="rebuild")
    with watch(lost) as seen:
        for name, route in (("a", 0), ("b", 1)):
            seen.engine.open_stream(StreamConfig(stream_id=name, release="free", route=route))
            seen.observe(name, route=route)
        for name in "ab":
            seen.until_chunks(name, 6)
        seen.engine._loop.cluster.kill(1)
        for name in "ab":
            seen.until_chunks(name, 3, epoch=1)
