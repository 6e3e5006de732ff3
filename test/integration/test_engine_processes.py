"""The engine over worker processes: the same chunks, and clean ends however they come about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from running_engine import PATIENCE_S, STATE, Collected, observation

from physis_core.cluster.processes import ProcessCluster
from physis_core.deployment.deployment import Deployment, DeviceSpec, Route, simple_deployment
from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig
from physis_core.model.loading import load, load_spec
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.pipeline.partition import make_partition
from physis_core.types import Refused, UserError

pytestmark = pytest.mark.integration


def gone(pids):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        living = [p for p in pids if psutil.pid_exists(p) and _running(p)]
        if not living:
            return True
        time.sleep(0.05)
    return False


def _running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("partition", "kv", "refs"),
    [
        ("block", "noisy", {}),
        ("stage", "noisy", {"extra_stream_tokens": 3}),
        ("block", "clean", {}),
    ],
)
def test_processes_give_the_chunks_of_the_reference_and_leave_nothing(partition, kv, refs):
    torch.set_num_threads(1)
    ref = ModelRef(family="synthetic", config={"steps": 3, "blocks": 4, "kv": kv, **refs})
    deployment = simple_deployment(ref, partition=partition, devices=12, workers=2)
    seen = Collected()
    with Engine(deployment, on_chunk=seen.chunk, on_event=seen.event) as engine:
        engine.start(PATIENCE_S)
        pids = list(engine.worker_pids().values())
        assert len(pids) == 2
        engine.open_stream(StreamConfig(stream_id="a", release="free", seed=5))
        engine.observe("a", observation())
        seen.until(lambda: len(seen.chunks) >= 20)
        assert engine.close_stream("a", drain=True)
    assert gone(pids)
    reference = ReferenceStream(load(ref), seed=5)
    for at, chunk in enumerate(seen.chunks):
        assert chunk.chunk_id == at
        wanted = reference.run_chunk({0: {"state": STATE}})
        for name, value in wanted.items():
            np.testing.assert_array_equal(chunk.outputs[name], value.numpy())
    assert [e.kind for e in seen.events] == ["stream_opened", "stream_closed"]


def test_a_killed_worker_ends_its_streams_and_no_other():
    ref = ModelRef(family="synthetic", config={"steps": 2, "blocks": 2})
    graph = load_spec(ref).graph
    apart = make_partition("block", graph, 2)
    alone = make_partition("sequential", graph, 1)
    deployment = Deployment(
        models={"model": ref},
        devices=tuple(DeviceSpec(kind="cpu", worker=w) for w in range(3)),
        routes=(
            Route(partition=apart, device_of_rank=(0, 1)),
            Route(partition=alone, device_of_rank=(2,)),
        ),
        workers=3,
    )
    seen = Collected()
    with Engine(deployment, on_chunk=seen.chunk, on_event=seen.event) as engine:
        engine.start(PATIENCE_S)
        for route, name in enumerate(["over both", "alone"]):
            engine.open_stream(StreamConfig(stream_id=name, period_s=0.02, route=route))
            engine.observe(name, observation())
        seen.until(lambda: seen.of("over both") and seen.of("alone"))
        os.kill(engine.worker_pids()[1], signal.SIGKILL)
        seen.until(lambda: any(e.kind == "worker_lost" for e in seen.events))
        seen.until(lambda: any(e.kind == "stream_failed" for e in seen.events))
        (failed,) = [e for e in seen.events if e.kind == "stream_failed"]
        assert failed.stream_id == "over both"
        count = len(seen.of("alone"))
        seen.until(lambda: len(seen.of("alone")) >= count + 5)
        refused = engine.open_stream(StreamConfig(stream_id="new", period_s=0.02, route=0))
        assert isinstance(refused, Refused)
        assert "worker 1" in refused.reason
        assert isinstance(engine.observe("over both", observation()), Refused)
        pids = list(engine.worker_pids().values())
    assert gone(pids)


def test_workers_outlive_the_thread_that_started_the_engine():
    ref = ModelRef(family="synthetic", config={"steps": 2, "blocks": 2})
    seen = Collected()
    deployment = simple_deployment(ref, partition="block", devices=2, workers=2)
    engine = Engine(deployment, on_chunk=seen.chunk, on_event=seen.event)
    starting = threading.Thread(target=engine.start, args=(PATIENCE_S,))
    starting.start()
    starting.join()
    with engine:
        engine.open_stream(StreamConfig(stream_id="a", release="free"))
        engine.observe("a", observation())
        seen.until(lambda: len(seen.chunks) >= 20)
        assert engine.status().workers_alive == (0, 1)
    assert [e.kind for e in seen.events] == ["stream_opened"]


FRONT = textwrap.dedent(
    """
    import sys, time
    from physis_core.model.registry import ModelRef
    from physis_core.deployment.deployment import simple_deployment
    from physis_core.engine.engine import Engine
    ref = ModelRef(family="synthetic", config={"steps": 2, "blocks": 2})
    engine = Engine(
        simple_deployment(ref, partition="block", devices=2, workers=2), on_chunk=lambda c: None
    )
    engine.start(120.0)
    print(*engine.worker_pids().values(), flush=True)
    time.sleep(1000)
    """
)


def test_workers_end_with_their_front_however_it_ends():
    front = subprocess.Popen([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True)
    try:
        pids = [int(p) for p in front.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        front.kill()
        front.wait()
    assert gone(pids)


def test_a_model_that_does_not_fit_is_named_and_leaves_nothing(tmp_path):
    ref = ModelRef(family="synthetic", config={"steps": 2, "blocks": 2})
    deployment = simple_deployment(
        ref, partition="block", devices=2, workers=2, device_kind="cuda:97"
    )
    engine = Engine(deployment, on_chunk=lambda c: None)
    with pytest.raises(UserError, match="cuda:97"):
        engine.start(PATIENCE_S)
    assert gone(list(engine.worker_pids().values()))


def other_steady_clock():
    """A command in front of another that gives it a steady clock 5,000 s ahead, as another host
    has.
    """
    command = ["unshare", "-T", "--monotonic", "5000", "--fork"]
    try:
        works = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    if not works:
        pytest.skip("no time namespaces here (needs root and unshare)")
    return command


@pytest.mark.parametrize("elsewhere", [False, True])
def test_workers_may_be_started_from_elsewhere_as_torchrun_does(elsewhere, monkeypatch):
    before = other_steady_clock() if elsewhere else []
    ref = ModelRef(family="synthetic", config={"steps": 2, "blocks": 2})
    deployment = simple_deployment(
        ref, partition="block", devices=2, workers=2, workers_from="elsewhere"
    )
    key = bytes(range(32)).hex()
    monkeypatch.setenv("PHYSIS_KEY", key)
    clusters = []

    def make(deployment, on_message):
        clusters.append(ProcessCluster(deployment, on_message))
        return clusters[0]

    seen = Collected()
    engine = Engine(deployment, on_chunk=seen.chunk, make=make)
    starting = threading.Thread(target=engine.start, args=(PATIENCE_S,))
    starting.start()
    end = time.monotonic() + PATIENCE_S
    while not clusters[0].listening:
        assert time.monotonic() < end
        time.sleep(0.02)
    workers = [
        subprocess.Popen(
            [
                *(before if rank == 1 else []),
                sys.executable,
                "-m",
                "physis_core.worker.process",
                "--front",
                clusters[0].store_address,
            ],
            env={**os.environ, "RANK": str(rank), "PHYSIS_KEY": key},
        )
        for rank in range(2)
    ]
    try:
        starting.join(PATIENCE_S)
        engine.open_stream(StreamConfig(stream_id="a", release="free"))
        engine.observe("a", observation())
        seen.until(lambda: len(seen.chunks) >= 5)
        # Whatever the hosts' clocks say, all times are the front's.
        now_s = time.monotonic()
        assert all(0.0 < c.entry_s < c.exit_s <= now_s for c in seen.chunks)
        hops_s = [t["ready_s"] - t["sent_s"] for t in engine.trace().tasks if t["source"] >= 0]
        assert all(-0.05 < hop_s < PATIENCE_S for hop_s in hops_s)
    finally:
        engine.close()
        codes = [worker.wait(PATIENCE_S) for worker in workers]
    assert codes == [0, 0]


def test_a_worker_from_elsewhere_without_the_key_is_told_in_one_line():
    worker = subprocess.run(
        [sys.executable, "-m", "physis_core.worker.process", "--front", "127.0.0.1:1"],
        env={**os.environ, "RANK": "0", "PHYSIS_KEY": "abc"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert worker.returncode == 2
    assert worker.stderr.count("\n") == 1
    assert "PHYSIS_KEY" in worker.stderr
    assert "abc" not in worker.stderr
