"""A worker process that is stopped (SIGSTOP) holds up no stream that does not need it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
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
def deployment(request: Any) -> dict[str, Any]:
    """Fields of the deployment that differ from the usual ones."""
    return getattr(request, "param", {})


@pytest.fixture
def running(deployment: dict[str, Any]) -> Iterator[Any]:
    """Route 0 over worker 0 and 1, route 1 over worker 2 alone."""
    config = {"steps": 2, "blocks": 2, "window_chunks": 4}
    ref = ModelRef(family="synthetic", config=config)
    graph = load_spec(ref).graph
    whole = Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="cpu", worker=w) for w in range(3)),
        routes=(
            Route(partition=make_partition("block", graph, 2), device_of_rank=(0, 1)),
            Route(partition=make_partition("sequential", graph, 1), device_of_rank=(2,)),
        ),
        workers=3,
        **deployment,
    )
    with Running(whole) as run:
        try:
            yield run
        finally:
            for pid in run.engine.worker_pids().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def stop(running: Any, worker: int) -> int:
    pid: int = running.engine.worker_pids()[worker]
    os.kill(pid, signal.SIGSTOP)
    return pid


def events(running: Any, kind: str) -> list[Any]:
    return [event for event in running.events if event.kind == kind]


@pytest.mark.parametrize("deployment", [{"silence_s": 30.0}], indirect=True)
def test_large_observations_to_a_stopped_worker_stop_nobody_else(running: Any) -> None:
    """Of a worker whose silence is no loss yet."""
    cluster = running.engine._loop.cluster
    running.open("over both", refresh="every_step")
    running.open("alone", route=1)
    running.until_chunks("over both", 0, 3)
    stop(running, 0)
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
    # Its stuck chunk is said before it completes.
    (figures,) = [s for s in running.engine.status().streams if s.stream_id == "over both"]
    assert figures.overdue_s > 1.0
    assert "overdue" in running.engine.trouble("over both")
    assert running.engine.trouble("alone") == ""
    assert [e.stream_id for e in events(running, "chunk_overdue")] == ["over both"]
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


@pytest.mark.parametrize("deployment", [{"recovery": "rebuild"}], indirect=True)
def test_a_stopped_worker_is_replaced_and_its_old_chunks_never_come(running: Any) -> None:
    running.open("over both")
    running.open("alone", route=1)
    running.until_chunks("over both", 0, 5)
    stopped = stop(running, 1)
    running.until(lambda: events(running, "worker_lost"))
    (lost,) = events(running, "worker_lost")
    assert lost.worker == 1
    assert lost.reason.startswith("not heard of for ")
    count = len(running.of("alone"))
    running.until_chunks("alone", 0, count + 5)
    running.until_chunks("over both", 1, 5)
    assert running.engine.worker_pids()[1] != stopped
    assert status_of(stopped) in ("gone", psutil.STATUS_ZOMBIE)
    assert running.engine.status().lost == ()
    assert running.engine.trouble("over both") == ""
    order = [chunk.epoch for chunk in running.chunks if chunk.stream_id == "over both"]
    assert order == sorted(order), "nothing of epoch 0 came after epoch 1 began"
    assert len(events(running, "worker_lost")) == 1


def status_of(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return "gone"
