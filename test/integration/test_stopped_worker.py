"""A worker process that is stopped (SIGSTOP) holds up no stream that does not need it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from running_engine import Running, observation

from physis_core.cluster.messages import Observe
from physis_core.deployment.deployment import Deployment, DeviceSpec, Route
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.pipeline.partition import make_partition

pytestmark = pytest.mark.integration
IMAGE = np.zeros((480, 640, 3), np.uint8)
NOBODYS_STREAM = 999


@pytest.fixture
def running() -> Iterator[Any]:
    """Route 0 over worker 0 and 1, route 1 over worker 2 alone."""
    config = {"steps": 2, "blocks": 2, "window_chunks": 4}
    ref = ModelRef(family="synthetic", config=config)
    graph = load_spec(ref).graph
    deployment = Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="cpu", worker=w) for w in range(3)),
        routes=(
            Route(partition=make_partition("block", graph, 2), device_of_rank=(0, 1)),
            Route(partition=make_partition("sequential", graph, 1), device_of_rank=(2,)),
        ),
        workers=3,
    )
    with Running(deployment) as run:
        try:
            yield run
        finally:
            for pid in run.engine.worker_pids().values():
                os.kill(pid, signal.SIGCONT)


def test_large_observations_to_a_stopped_worker_stop_nobody_else(running: Any) -> None:
    cluster = running.engine._loop.cluster
    running.open("over both", refresh="every_step")
    running.open("alone", route=1)
    running.until_chunks("over both", 0, 3)
    os.kill(running.engine.worker_pids()[0], signal.SIGSTOP)
    end_s, number = time.monotonic() + 4.0, 0
    while time.monotonic() < end_s:
        number += 1
        image = {"image": IMAGE}
        # Far more than the socket takes.
        cluster.send(0, Observe(stream=NOBODYS_STREAM, epoch=0, number=number, observation=image))
        assert running.engine.observe("over both", observation()) is None
        time.sleep(0.02)
    beat, count = running.engine.beat, len(running.of("alone"))
    running.until_chunks("alone", 0, count + 5)
    assert running.engine.beat > beat
    # Requests on the other route do not wait for the stopped worker.
    running.open("new", route=1)
    running.until_chunks("new", 0, 2)
    assert running.engine.set_condition("new", {"bias": 0.5}) is None
    assert running.engine.close_stream("new")
    # One look at the queues may be open, whatever the time that has passed.
    assert len(running.engine._loop.workers._open) <= 2
    # It comes back, and with it its stream, on the newest observation.
    count = len(running.of("over both"))
    os.kill(running.engine.worker_pids()[0], signal.SIGCONT)
    running.until_chunks("over both", 0, count + 3)
