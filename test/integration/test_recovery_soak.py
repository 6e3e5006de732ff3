"""kill -9 of random workers at random times, also in the middle of a way back."""

from __future__ import annotations

import random
import threading

import pytest
from running_engine import Running

from physis_core.deployment.deployment import Deployment, DeviceSpec, Route
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.pipeline.partition import make_partition

pytestmark = pytest.mark.integration
CONFIG = {"steps": 2, "blocks": 2, "window_chunks": 4, "sink_chunks": 1, "dtype": "float64"}


@pytest.mark.parametrize("recovery", ["snapshot", "rebuild"])
def test_losses_at_any_time_end_in_streams_that_go_on(recovery):
    ref = ModelRef(family="synthetic", config=CONFIG)
    graph = load_spec(ref).graph
    deployment = Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="cpu", worker=w) for w in (0, 1, 2)),
        routes=tuple(
            Route(partition=make_partition("block", graph, 2), device_of_rank=devices)
            for devices in ((0, 1), (1, 2), (2, 0))
        ),
        workers=3,
        max_batch=2,
        recovery=recovery,
        snapshot_every=2,
        respawns=100,
    )
    rng = random.Random(7)
    with Running(deployment) as run:
        names = ["a", "b", "c"]
        for route, name in enumerate(names):
            run.open(name, route=route)
        for name in names:
            run.until_chunks(name, 0, 5)
        for _ in range(5):
            run.kill(rng.randrange(3))
            waiting = threading.Condition()
            with waiting:
                waiting.wait(rng.uniform(0.0, 4.0))
        for name in names:
            count = len([c for c in run.chunks if c.stream_id == name])
            run.until(lambda n=name, k=count: len([c for c in run.chunks if c.stream_id == n]) > k)
        run.until(lambda: run.engine.status().workers_alive == (0, 1, 2))
        for name in names:
            epoch = {f.stream_id: f.epoch for f in run.engine.status().streams}[name]
            run.until_chunks(name, epoch, 20)
        for name in names:
            assert run.engine.close_stream(name, drain=True)
        run.until_quiet()
    assert not run.told("stream_failed")
    for name in names:
        own = [(c.epoch, c.chunk_id) for c in run.chunks if c.stream_id == name]
        assert own == sorted(set(own))
