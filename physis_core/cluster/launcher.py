"""The workers as the front sees them: started, spoken to, missed when they die, stopped.

Two kinds with one face: worker processes of this host (or of others, started by torchrun), and one
worker in a thread of this process. Both run the same loop and give the same chunks.
"""

from __future__ import annotations

import threading
from typing import Protocol

from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import GivenUp, Message, OnMessage, never
from physis_core.cluster.processes import ProcessCluster
from physis_core.deployment.deployment import Deployment
from physis_core.worker.loop import WorkerLoop
from physis_core.worker.process import build_loop


class Cluster(Protocol):
    def start(self, timeout_s: float, given_up: GivenUp = never) -> list[Message]:
        """Start all workers and wait for their `ready` messages, in the order of workers.

        Raises:
            UserError: a worker could not be built from the deployment.
            TimeoutError: not all were ready in time.
            InterruptedError: given up.
        """
        ...

    def send(self, worker: int, message: Message) -> None: ...

    def send_large(self, worker: int, message: Message) -> None:
        """May be overtaken by what is sent with `send`, and does not hold it up."""
        ...

    def alive(self) -> tuple[int, ...]:
        """Workers that are ready and not lost."""
        ...

    def respawn(self, worker: int, incarnation: int) -> None:
        """Start a lost worker anew, and make sure that the old one is no more. Does not wait: what
        comes of it is a `ready` message, or `dead` again.
        """
        ...

    def kill(self, worker: int) -> None:
        """End a worker that hangs; `dead` follows."""
        ...

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

    def start(self, timeout_s: float, given_up: GivenUp = never) -> list[Message]:
        self._loop, ready = build_loop(self._deployment, 0, self._reply, self._reply, HostClock())
        self._thread = threading.Thread(target=self._run, name="physis-worker", daemon=True)
        self._thread.start()
        return [ready]

    def _reply(self, message: Message) -> None:
        self._on_message(0, message)

    def _run(self) -> None:
        assert self._loop is not None
        try:
            self._loop.run()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._on_message(0, Message("dead", {"incarnation": 0, "reason": reason}))
            raise

    def send(self, worker: int, message: Message) -> None:
        assert self._loop is not None
        self._loop.post("message", message)

    send_large = send

    def alive(self) -> tuple[int, ...]:
        return (0,) if self._thread is not None and self._thread.is_alive() else ()

    def respawn(self, worker: int, incarnation: int) -> None:
        raise AssertionError("a deployment without processes has no recovery")

    def kill(self, worker: int) -> None:
        raise AssertionError("a deployment without processes has no recovery")

    def pids(self) -> dict[int, int]:
        return {}

    def close(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.post("message", Message("stop", {}))
            self._thread.join()


def make_cluster(deployment: Deployment, on_message: OnMessage) -> Cluster:
    if deployment.workers == 0:
        return ThreadCluster(deployment, on_message)
    return ProcessCluster(deployment, on_message)
