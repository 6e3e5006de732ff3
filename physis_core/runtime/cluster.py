"""The workers as the front sees them: started, spoken to, missed when they die, stopped.

Two kinds with one face: worker processes of this host (or of others, started by torchrun), and one
worker in a thread of this process. Both run the same loop and give the same chunks.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from typing import Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from physis_core.runtime.control import Channel, Message, Wake
from physis_core.runtime.deployment import Deployment
from physis_core.runtime.host_clock import Exchange, HostClock, clock_error_s
from physis_core.runtime.worker import Orders, build_loop, shared_key
from physis_core.runtime.worker_loop import WorkerLoop
from physis_core.types import UserError

_CLOCK_QUESTIONS = 8
OnMessage = Callable[[int, Message], None]
"""(worker, message), called in whatever thread received it. `dead` is made here when a worker
ends.
"""


class Cluster(Protocol):
    def start(self, timeout_s: float) -> list[Message]:
        """Start all workers and wait for their `ready` messages, in the order of workers.

        Raises:
            UserError: a worker could not be built from the deployment.
            TimeoutError: not all were ready in time.
        """
        ...

    def send(self, worker: int, message: Message) -> None: ...

    def alive(self) -> tuple[int, ...]: ...

    def pids(self) -> dict[int, int]:
        """Process ids of the workers that this process started."""
        ...

    def close(self) -> None:
        """Stop all workers and wait for their end."""
        ...


class ThreadCluster:
    """One worker in a thread."""

    def __init__(self, deployment: Deployment, on_message: OnMessage) -> None:
        self._deployment = deployment
        self._on_message = on_message
        self._loop: WorkerLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self, timeout_s: float) -> list[Message]:
        self._loop, ready = build_loop(
            self._deployment, 0, lambda message: self._on_message(0, message), HostClock()
        )
        self._thread = threading.Thread(target=self._run, name="physis-worker", daemon=True)
        self._thread.start()
        return [ready]

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run()
        except Exception as error:
            self._on_message(0, Message("dead", {"reason": f"{type(error).__name__}: {error}"}))
            raise

    def send(self, worker: int, message: Message) -> None:
        assert self._loop is not None
        self._loop.post("message", message)

    def alive(self) -> tuple[int, ...]:
        return (0,) if self._thread is not None and self._thread.is_alive() else ()

    def pids(self) -> dict[int, int]:
        return {}

    def close(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.post("message", Message("stop", {}))
            self._thread.join()


class ProcessCluster:
    """Worker processes: children of this one, or started elsewhere (`Deployment.workers_from`)."""

    def __init__(self, deployment: Deployment, on_message: OnMessage) -> None:
        self._deployment = deployment
        self._on_message = on_message
        self._spawn = deployment.workers_from == "spawn"
        self._host = deployment.front_host
        self._key = secrets.token_bytes(32) if self._spawn else shared_key(os.environ)
        self._store: TCPStore | None = None
        self._listener: Listener | None = None
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._channels: dict[int, Channel] = {}
        self._readers: list[threading.Thread] = []
        self._ready: dict[int, Message] = {}
        self._fatal: Message | None = None
        self._dead: dict[int, str] = {}
        self._changed = Wake()
        self._lock = threading.Lock()
        self._closing = False
        self._ended = threading.Event()
        self._listening = False

    def start(self, timeout_s: float) -> list[Message]:
        try:
            self._start(timeout_s)
        except BaseException:
            self.close()
            raise
        return [self._ready[worker] for worker in range(self._deployment.workers)]

    def _start(self, timeout_s: float) -> None:
        try:
            self._store = TCPStore(
                self._host, self._deployment.front_port, None, True, wait_for_workers=False
            )
        except RuntimeError as error:
            # The store is at hand only under torch's own exception type, a RuntimeError.
            first = str(error).splitlines()[0]
            raise UserError("front_port", self._deployment.front_port, first) from None
        self._listener = Listener((self._host, 0), backlog=64, authkey=self._key)
        control_port = self._listener.address[1]
        assert isinstance(control_port, int)
        shared = {"deployment": self._deployment.to_json(), "control_port": control_port}
        self._store.set("physis/cluster", json.dumps(shared))
        accepting = threading.Thread(target=self._accept, name="physis-accept", daemon=True)
        accepting.start()
        self._listening = True
        if self._spawn:
            spawned = threading.Event()
            threading.Thread(
                target=self._spawn_all,
                args=(control_port, spawned),
                name="physis-parent",
                daemon=True,
            ).start()
            spawned.wait()
        ends_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                fatal, dead, ready = self._fatal, dict(self._dead), len(self._ready)
            if fatal is not None:
                fields = fatal.fields
                raise UserError(fields["field"], fields["value"], fields["reason"])
            for worker, process in self._processes.items():
                if process.poll() is not None and worker not in self._ready:
                    dead[worker] = f"exit code {process.returncode}"
            if dead:
                worker, reason = next(iter(dead.items()))
                raise RuntimeError(f"worker {worker} ended before it was ready: {reason}")
            if ready == self._deployment.workers:
                return
            left_s = ends_s - time.monotonic()
            if left_s <= 0.0:
                raise TimeoutError(
                    f"{ready} of {self._deployment.workers} workers ready after {timeout_s} s"
                )
            self._changed.wait(min(left_s, 0.2))

    @property
    def store_address(self) -> str:
        """HOST:PORT for `python -m physis_core.runtime.worker --front`; after the start has
        begun.
        """
        assert self._store is not None
        return f"{self._host}:{self._store.port}"

    @property
    def listening(self) -> bool:
        """Whether workers from elsewhere may come."""
        return self._listening

    def _spawn_all(self, control_port: int, spawned: threading.Event) -> None:
        """Start the workers, and live as long as they: the kernel takes the end of the thread that
        started a process for the end of its parent, and they end with their parent.
        """
        try:
            for worker in range(self._deployment.workers):
                self._spawn_worker(worker, control_port)
        finally:
            spawned.set()
        self._ended.wait()

    def _spawn_worker(self, worker: int, control_port: int) -> None:
        assert self._store is not None
        orders = Orders(
            deployment=self._deployment,
            worker=worker,
            store_host=self._host,
            store_port=self._store.port,
            control_host=self._host,
            control_port=control_port,
            key=self._key,
            link_host=self._host,
        )
        threads = str(self._deployment.threads)
        process = subprocess.Popen(
            [sys.executable, "-m", "physis_core.runtime.worker"],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        )
        self._processes[worker] = process
        assert process.stdin is not None
        # A pipe, not the command line: the key must not stand in the process table.
        process.stdin.write(orders.to_json() + "\n")
        process.stdin.close()

    def _accept(self) -> None:
        assert self._listener is not None
        while not self._closing:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):
                # A peer with a wrong key, one that hung up, or the listener was closed by us.
                continue
            channel = Channel(connection)
            reader = threading.Thread(target=self._read, args=(channel,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, channel: Channel) -> None:
        hello = channel.receive()
        if hello is None or hello.kind != "hello":
            channel.close()
            return
        worker: int = hello.fields["worker"]
        if not _set_clock(channel):
            channel.close()
            return
        with self._lock:
            self._channels[worker] = channel
        stopped = False
        while True:
            message = channel.receive()
            if message is None:
                break
            if message.kind == "ready":
                with self._lock:
                    self._ready[worker] = message
                self._changed.ring()
            elif message.kind == "fatal":
                with self._lock:
                    self._fatal = message
                self._changed.ring()
            elif message.kind == "stopped":
                stopped = True
            else:
                self._on_message(worker, message)
        with self._lock:
            self._dead[worker] = "connection closed"
        self._changed.ring()
        if not stopped and not self._closing:
            self._on_message(worker, Message("dead", {"reason": self._why(worker)}))

    def _why(self, worker: int) -> str:
        process = self._processes.get(worker)
        if process is None:
            return "its connection closed"
        try:
            code = process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            return "its connection closed, the process lives"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def send(self, worker: int, message: Message) -> None:
        # A worker that is gone takes nothing more; its end has been, or is being, reported.
        channel = self._channels.get(worker)
        if channel is not None:
            channel.send(message)

    def alive(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(sorted(w for w in self._channels if w not in self._dead))

    def pids(self) -> dict[int, int]:
        return {worker: process.pid for worker, process in self._processes.items()}

    def close(self) -> None:
        if self._closing:
            return
        for worker in self.alive():
            self.send(worker, Message("stop", {}))
        self._closing = True
        for process in self._processes.values():
            try:
                process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ended.set()
        for reader in self._readers:
            reader.join(timeout=2.0)
        for channel in self._channels.values():
            channel.close()
        if self._listener is not None:
            self._listener.close()
        self._store = None


def _set_clock(channel: Channel) -> bool:
    """Tell a new worker how far its steady clock is ahead of ours. False: it went away."""
    exchanges = []
    for _ in range(_CLOCK_QUESTIONS):
        asked_s = time.monotonic()
        channel.send(Message("ping", {}))
        answer = channel.receive()
        if answer is None or answer.kind != "pong":
            return False
        exchanges.append(
            Exchange(asked_s=asked_s, remote_s=answer.fields["now_s"], heard_s=time.monotonic())
        )
    return channel.send(Message("clock", {"shift_s": clock_error_s(exchanges)}))


def make_cluster(deployment: Deployment, on_message: OnMessage) -> Cluster:
    if deployment.workers == 0:
        return ThreadCluster(deployment, on_message)
    return ProcessCluster(deployment, on_message)
