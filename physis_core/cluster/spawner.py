"""Worker processes as children of this one: started early, given their orders later, waited for.

A worker's interpreter needs seconds to import torch. `prepare` starts it before the orders are
known, so that workers and engine import at the same time.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

from physis_core.cluster.orders import Orders
from physis_core.cluster.threads import start_thread

WORKER = "physis_core.worker.process"
"""The module that a worker process runs."""

Process = subprocess.Popen[str]


class Spawner:
    """One thread starts all children and lives as long as they: they ask the kernel to end with
    their parent (`die_with_parent`), and it takes the end of the thread that started a process for
    the end of its parent.

    Args:
        workers: interpreters that `prepare` starts.
        threads: of each worker's computing.
        failed: gets the reason where the thread ends by an error; nothing can be started any more.
    """

    def __init__(self, workers: int, threads: int, failed: Callable[[str], None]) -> None:
        self._workers = workers
        self._threads = str(threads)
        self._failed = failed
        self._waiting: list[Process] = []
        self._acts: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = False

    def prepare(self) -> None:
        """Start the interpreters, which wait for their orders. May be called twice."""
        if self._thread is None:
            self._thread = start_thread("physis-parent", self._run, self._failed)
            for _ in range(self._workers):
                self._acts.put(lambda: self._waiting.append(self._interpreter()))

    def start(
        self,
        orders: Orders,
        started: Callable[[Process | OSError], None],
        instead_of: Process | None = None,
    ) -> None:
        """Start a worker, after `instead_of` has been killed and is no more. `started` is called in
        the spawner's thread, with what became of it; not at all after `end_starts`.
        """
        self.prepare()
        self._acts.put(lambda: self._start(orders, started, instead_of))

    def end_starts(self) -> None:
        """Start nothing any more. What `start` began before is done when this returns."""
        with self._starting:
            self._ended = True

    def close(self) -> None:
        """End the interpreters that never got orders. Workers that live on end with the thread."""
        self.end_starts()
        self._acts.put(None)
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        # Ctrl-C reaches the whole group of the terminal, but when workers end is for the engine to
        # say. They inherit this mask, from the very first line that they run.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        while True:
            act = self._acts.get()
            if act is None:
                break
            act()
        for process in self._waiting:
            process.kill()
            process.wait()

    def _start(
        self,
        orders: Orders,
        started: Callable[[Process | OSError], None],
        instead_of: Process | None,
    ) -> None:
        with self._starting:
            if self._ended:
                return
            if instead_of is not None:
                instead_of.kill()
                instead_of.wait()
            try:
                process = self._waiting.pop() if self._waiting else self._interpreter()
                assert process.stdin is not None
                # A pipe, not the command line: the key must not stand in the process table.
                process.stdin.write(orders.to_json() + "\n")
                process.stdin.close()
            except OSError as error:
                # This thread must live on: its end would be the end of all workers.
                started(error)
                return
            started(process)

    def _interpreter(self) -> Process:
        return subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OMP_NUM_THREADS": self._threads,
                "MKL_NUM_THREADS": self._threads,
            },
        )
