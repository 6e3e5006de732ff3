"""Worker processes: children of this one, or started elsewhere (`Deployment.workers_from`).

Threads: one accepts connections, one starts the children (`Spawner`), one reads each connection,
and one waits for each child that was started anew. Where one of them fails, the engine hears of it:
of a lost worker, or that the cluster has failed.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from physis_core.cluster.clock_sync import set_clock
from physis_core.cluster.launcher import GivenUp, OnNews, never
from physis_core.cluster.listener import KeyListener
from physis_core.cluster.messages import (
    ClusterFailed,
    Fatal,
    Hello,
    Message,
    Ready,
    Refusal,
    Stop,
    Stopped,
    ToEngine,
    WorkerDied,
)
from physis_core.cluster.orders import SHARED_AT, Orders, Shared, shared_key
from physis_core.cluster.spawner import Process, Spawner
from physis_core.cluster.store import listening_store
from physis_core.cluster.threads import Wake, described, start_thread
from physis_core.cluster.transport import BadMessageError, Channel, engine_decoder
from physis_core.deployment.deployment import Deployment
from physis_core.types import UserError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


class ProcessCluster:
    """Implements `Cluster`. A worker's `incarnation` counts its starts from 0; what an older one
    says or what becomes of it carries its own number.
    """

    def __init__(self, deployment: Deployment, on_news: OnNews) -> None:
        self._deployment = deployment
        self._on_news = on_news
        self._spawn = deployment.workers_from == "spawn"
        self._host = deployment.front_host
        self._key = secrets.token_bytes(32) if self._spawn else shared_key(os.environ)
        self._store: TCPStore | None = None
        self._listener: KeyListener | None = None
        self._spawner = Spawner(deployment.workers, deployment.threads, self._fail)
        self._processes: dict[int, Process] = {}
        self._channels: dict[int, Channel[ToEngine]] = {}
        self._called: dict[int, int] = {}
        """Worker -> the newest incarnation that has called."""
        self._up: set[int] = set()
        self._ready: dict[int, Ready] = {}
        self._fatal: Fatal | None = None
        self._dead: dict[int, str] = {}
        self._failed = ""
        self._changed = Wake()
        self._lock = threading.Lock()
        self._closing = False
        self._listening = False
        self._running = False

    def prepare(self) -> None:
        if self._spawn:
            self._spawner.prepare()

    def start(self, timeout_s: float, given_up: GivenUp = never) -> list[Ready]:
        try:
            self._start(timeout_s, given_up)
        except BaseException:
            self.close()
            raise
        with self._lock:
            if self._failed:
                raise RuntimeError(self._failed)
            self._running = True
        return [self._ready[worker] for worker in range(self._deployment.workers)]

    def _start(self, timeout_s: float, given_up: GivenUp) -> None:
        self._store = listening_store(self._host, self._deployment.front_port, "front_port")
        self._listener = KeyListener(self._host, self._key, greeted=self._read, failed=self._fail)
        control_port = self._listener.port
        shared = Shared(deployment=self._deployment.to_json(), control_port=control_port)
        self._store.set(SHARED_AT, shared.to_json())
        self._listener.start()
        self._listening = True
        if self._spawn:
            for worker in range(self._deployment.workers):
                self._spawn_worker(worker, 0)
        ends_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                fatal, dead, ready = self._fatal, dict(self._dead), len(self._ready)
            if fatal is not None:
                raise UserError(fatal.field, fatal.value, fatal.reason)
            if self._failed:
                raise RuntimeError(self._failed)
            for worker, process in list(self._processes.items()):
                if process.poll() is not None and worker not in self._ready:
                    dead[worker] = f"exit code {process.returncode}"
            if dead:
                worker, reason = next(iter(dead.items()))
                raise RuntimeError(f"worker {worker} ended before it was ready: {reason}")
            if ready == self._deployment.workers:
                return
            if given_up():
                raise InterruptedError("the start was given up")
            left_s = ends_s - time.monotonic()
            if left_s <= 0.0:
                raise TimeoutError(
                    f"{ready} of {self._deployment.workers} workers ready after {timeout_s} s"
                )
            self._changed.wait(min(left_s, 0.2))

    def _fail(self, reason: str) -> None:
        """A thread that all workers depend on has ended by an error."""
        with self._lock:
            self._failed = reason
        self._changed.ring()
        if self._running and not self._closing:
            self._on_news(-1, ClusterFailed(reason=reason))

    def _died(self, worker: int, incarnation: int, reason: str) -> None:
        if not self._closing:
            self._on_news(worker, WorkerDied(incarnation=incarnation, reason=reason))

    @property
    def store_address(self) -> str:
        """HOST:PORT for `python -m physis_core.worker.process --front`; after the start has
        begun.
        """
        assert self._store is not None
        return f"{self._host}:{self._store.port}"

    @property
    def listening(self) -> bool:
        """Whether workers from elsewhere may come."""
        return self._listening

    def _watch(self, worker: int, incarnation: int) -> None:
        """Tell of a worker that ended before it called. Of all others their connection tells."""
        code = self._processes[worker].wait()
        if self._called.get(worker) != incarnation:
            self._died(worker, incarnation, f"ended at its start: {_ending(code)}")

    def respawn(self, worker: int, incarnation: int) -> None:
        assert self._spawn, "workers from elsewhere are started there"
        # Where its connection broke and it lives on: nobody may work under its number any more.
        self._spawn_worker(worker, incarnation, instead_of=self._processes[worker])

    def kill(self, worker: int) -> None:
        process, channel = self._processes.get(worker), self._channels.get(worker)
        if process is not None:
            process.kill()
        elif channel is not None:
            channel.drop("the engine has not heard of it")

    def runs(self, worker: int) -> bool | None:
        process = self._processes.get(worker)
        return None if process is None else _runs(process.pid)

    def _spawn_worker(
        self, worker: int, incarnation: int, instead_of: Process | None = None
    ) -> None:
        """Does not wait. A first start that fails ends the start of the cluster; a later one that
        fails is the worker's death.
        """
        assert self._store is not None and self._listener is not None
        orders = Orders(
            deployment_json=self._deployment.to_json(),
            worker=worker,
            store_host=self._host,
            store_port=self._store.port,
            control_host=self._host,
            control_port=self._listener.port,
            key=self._key,
            link_host=self._host,
            incarnation=incarnation,
        )

        def started(process: Process | OSError) -> None:
            if isinstance(process, OSError):
                reason = f"was not started: {process}"
                if incarnation == 0:
                    self._fail(f"worker {worker} {reason}")
                else:
                    self._died(worker, incarnation, reason)
                return
            self._processes[worker] = process
            if incarnation > 0:
                start_thread(
                    "physis-watch",
                    lambda: self._watch(worker, incarnation),
                    lambda reason: self._died(worker, incarnation, reason),
                )

        self._spawner.start(orders, started, instead_of)

    def _read(self, connection: Connection) -> None:
        """Everything that one worker says, from its first message to its end."""
        channel = Channel(connection, engine_decoder())
        hello = self._greeted(channel)
        if hello is None:
            channel.close()
            return
        worker, incarnation = hello.worker, hello.incarnation
        with self._lock:
            self._channels[worker] = channel
            self._called[worker] = incarnation
        stopped, reason = False, ""
        try:
            stopped, reason = self._hear(channel, worker, incarnation)
        except Exception as error:  # noqa: BLE001
            # Nobody hears this worker any more, whatever the error was: it counts as lost.
            reason = f"its receiving thread failed: {described(error)}"
            channel.close()
        with self._lock:
            self._dead[worker] = reason or "connection closed"
            self._up.discard(worker)
        self._changed.ring()
        if not stopped and not self._closing:
            self._died(worker, incarnation, reason or self._why(worker))

    def _greeted(self, channel: Channel[ToEngine]) -> Hello | None:
        """Who calls, with its clock set; None where it is no worker of ours."""
        try:
            hello = channel.receive()
            if isinstance(hello, Hello) and set_clock(channel):
                return hello
        except BadMessageError as error:
            print(f"a process that is not a worker called: {error}", file=sys.stderr, flush=True)
        return None

    def _hear(self, channel: Channel[ToEngine], worker: int, incarnation: int) -> tuple[bool, str]:
        """Hand on what a worker says until its connection ends.

        Returns whether it stopped as it was asked to, and why it ended where it said so.
        """
        stopped, fatal = False, ""
        while True:
            try:
                message = channel.receive()
            except BadMessageError as error:
                self._on_news(worker, Refusal(reason=str(error)))
                continue
            match message:
                case None:
                    return stopped, fatal
                case Ready():
                    with self._lock:
                        self._ready[worker] = message
                        self._up.add(worker)
                    self._changed.ring()
                    if incarnation > 0:
                        self._on_news(worker, structs.replace(message, incarnation=incarnation))
                case Fatal():
                    with self._lock:
                        self._fatal = message
                    fatal = f"{message.field}: {message.reason}"
                    self._changed.ring()
                case Stopped():
                    stopped = True
                case _:
                    self._on_news(worker, message)

    def _why(self, worker: int) -> str:
        process = self._processes.get(worker)
        if process is None:
            return "its connection closed"
        try:
            code = process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            return "its connection closed, the process lives"
        return _ending(code)

    def send(self, worker: int, message: Message) -> None:
        # A worker that is gone takes nothing more; its end has been, or is being, reported.
        channel = self._channels.get(worker)
        if channel is not None:
            channel.send(message)

    def send_large(self, worker: int, message: Message) -> None:
        channel = self._channels.get(worker)
        if channel is not None:
            channel.send_large(message)

    def alive(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(sorted(self._up))

    def pids(self) -> dict[int, int]:
        return {worker: process.pid for worker, process in list(self._processes.items())}

    def close(self) -> None:
        if self._closing:
            return
        for worker in list(self._channels):
            self.send(worker, Stop())
        self._closing = True
        self._spawner.end_starts()
        for worker, process in self._processes.items():
            if worker not in self._channels:
                # It has not called yet, and so hears no order to stop.
                process.kill()
            try:
                process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._spawner.close()
        for channel in self._channels.values():
            channel.close()
        if self._listener is not None:
            self._listener.close()
        self._store = None


def _runs(pid: int) -> bool:
    """Not stopped, and not gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "TtZXx"


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
