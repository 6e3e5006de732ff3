"""The workers as the engine sees them: started, spoken to, missed when they die, stopped.

Two launchers with one interface: worker processes of this host or of others (`ProcessCluster`), and
one worker in a thread of this process. Both run the same loop and give the same chunks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from physis_core.cluster.messages import (
    Message,
    News,
    Observe,
    Ready,
    Stop,
    ToEngine,
    WorkerDied,
)
from physis_core.cluster.threads import start_thread
from physis_core.deployment.deployment import Deployment

OnNews = Callable[[int, News], None]
"""(worker, news of it), called in whatever thread received it. Worker -1: of none in particular."""
GivenUp = Callable[[], bool]
"""Asked while workers start; true ends the start."""


def never() -> bool:
    return False


class Cluster(Protocol):
    def prepare(self) -> None:
        """Begin what a start can do before anything is known of the model. Does not wait."""
        ...

    def start(self, timeout_s: float, given_up: GivenUp = never) -> list[Ready]:
        """Start all workers and wait for their `Ready`, in the order of workers.

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
        comes of it is `Ready`, or `WorkerDied` again.
        """
        ...

    def kill(self, worker: int) -> None:
        """End a worker that hangs, or its connection where it runs elsewhere; `WorkerDied`
        follows.
        """
        ...

    def runs(self, worker: int) -> bool | None:
        """Whether the worker's process runs; False also where it is stopped. None: not to be seen
        from here.
        """
        ...

    def pids(self) -> dict[int, int]:
        """Process ids of the workers that this process started."""
        ...

    def close(self) -> None:
        """Stop all workers and wait for their end."""
        ...


class Loop(Protocol):
    """A worker's loop, as the thread that runs it needs it."""

    def run(self) -> None: ...

    def post(self, kind: str, what: Any) -> None: ...

    def post_observation(self, message: Observe) -> None: ...


BuildLoop = Callable[[Deployment, Callable[[ToEngine], object]], tuple[Loop, Ready]]
"""Makes worker 0 of a deployment, warm; it replies by the callable."""


class ThreadCluster:
    """One worker in a thread."""

    def __init__(self, deployment: Deployment, on_news: OnNews, build: BuildLoop) -> None:
        self._deployment = deployment
        self._on_news = on_news
        self._build = build
        self._loop: Loop | None = None
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Nothing: the worker needs what this process imports itself."""

    def start(self, timeout_s: float, given_up: GivenUp = never) -> list[Ready]:
        self._loop, ready = self._build(self._deployment, lambda message: self._on_news(0, message))
        self._thread = start_thread("physis-worker", self._loop.run, self._died)
        return [ready]

    def _died(self, reason: str) -> None:
        self._on_news(0, WorkerDied(incarnation=0, reason=reason))

    def send(self, worker: int, message: Message) -> None:
        assert self._loop is not None
        if isinstance(message, Observe):
            self._loop.post_observation(message)
        else:
            self._loop.post("message", message)

    send_large = send

    def alive(self) -> tuple[int, ...]:
        return (0,) if self._thread is not None and self._thread.is_alive() else ()

    def respawn(self, worker: int, incarnation: int) -> None:
        raise AssertionError("a deployment without processes has no recovery")

    def kill(self, worker: int) -> None:
        raise AssertionError("a deployment without processes has no recovery")

    def runs(self, worker: int) -> bool | None:
        return None

    def pids(self) -> dict[int, int]:
        return {}

    def close(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.post("message", Stop())
            self._thread.join()
