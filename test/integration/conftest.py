"""A ROS domain of one test: processes of ours in it, and a node that speaks with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from own_domain import free_domain
from rclpy.executors import SingleThreadedExecutor

from physis_lab.session.session import loopback_environment
from physis_ros.node.interfaces import DIAGNOSTICS, Service, Topic, action_chunk
from physis_ros.stack.description import NODE_MODULES
from physis_ros.stack.transport import remove_abandoned

ROOT = Path(__file__).parents[2]
PATIENCE_S = 150.0


class RosBench:
    """Starts nodes as processes, listens, speaks, and leaves nothing behind."""

    def __init__(self, domain: int, folder: Path) -> None:
        self.domain = domain
        self.heard: dict[str, list[Any]] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self.logs: dict[int, Path] = {}
        self._others: list[Any] = []
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain)
        self.node = rclpy.create_node("bench", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)

    def start(self, node: str, *parameters: str, arguments: tuple[str, ...] = ()) -> Any:
        """Run the node's module with `-p` parameters and further ROS arguments."""
        given = [word for p in parameters for word in ("-p", p)]
        words = ["-m", NODE_MODULES[node], "--ros-args", *given, *arguments]
        return self._run(node, words)

    def start_file(self, path: Path, *words: str, talks: bool = False) -> Any:
        """Run a Python file of the tests as a process of this domain. `talks`: it has a standard
        input."""
        return self._run(path.stem, [str(path), *words], talks=talks)

    def _run(self, name: str, words: list[str], *, talks: bool = False) -> Any:
        log = self._folder / f"{name}.{len(self.processes)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=loopback_environment(self.domain),
                stdin=subprocess.PIPE if talks else None,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        self.logs[process.pid] = log
        return process

    def log(self, process: Any) -> str:
        return self.logs[process.pid].read_text(errors="replace")

    def listen(self, topic: Topic) -> list[Any]:
        """Messages as they come, in a list that grows."""
        messages: list[Any] = self.heard.setdefault(topic.name, [])
        self.node.create_subscription(topic.type, topic.name, messages.append, topic.qos)
        return messages

    def publisher(self, topic: Topic) -> Any:
        return self.node.create_publisher(topic.type, topic.name, topic.qos)

    def chunk_publisher(self) -> Any:
        """Of `action_chunk`, as an engine offers it; alive while it sends."""
        return self.publisher(action_chunk(offered=True))

    def another_node(self, name: str) -> Any:
        """Of this process, with a name of its own; it is there to publish."""
        node = rclpy.create_node(name, context=self._context)
        self._others.append(node)
        return node

    def call(self, service: Service, request: Any) -> Any:
        client = self.node.create_client(service.type, service.name)
        self.wait(client.service_is_ready, service.name)
        future = client.call_async(request)
        self.wait(future.done, f"an answer of {service.name}")
        return future.result()

    def every(self, period_s: float, act: Callable[[], None]) -> Any:
        return self.node.create_timer(period_s, act)

    def spin(self, timeout_s: float = 0.05) -> None:
        self._executor.spin_once(timeout_sec=timeout_s)

    def wait(self, done: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> None:
        end_s = time.monotonic() + patience_s
        while not done():
            if time.monotonic() > end_s:
                logs = "\n".join(f"--- {p.args}\n{self.log(p)}" for p in self.processes)
                pytest.fail(f"waited in vain for {what}\n{logs}")
            self.spin()

    def wait_for_diagnosis(self, part: str, text: str) -> None:
        """Until a status whose name ends in `part` says `text`."""
        heard = self.heard.get(DIAGNOSTICS.name)
        if heard is None:
            heard = self.listen(DIAGNOSTICS)
        said: dict[str, str] = {}

        def found() -> bool:
            arrays: list[DiagnosticArray] = list(heard)
            heard.clear()
            for array in arrays:
                for status in array.status:
                    said[status.name] = status.message
                    if status.name.endswith(part) and text in status.message:
                        return True
            return False

        try:
            self.wait(found, f"{part!r} to say {text!r}")
        finally:
            print(said)

    def stop(self, process: Any, number: int = signal.SIGINT) -> int:
        """Send a signal and give back the exit code."""
        if process.poll() is None:
            process.send_signal(number)
        return int(process.wait(timeout=PATIENCE_S))

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._executor.shutdown()
        for node in (self.node, *self._others):
            node.destroy_node()
        rclpy.shutdown(context=self._context)


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The transports of our processes for this one, and no memory of killed ones left behind."""
    for name, value in loopback_environment(0).items():
        if name != "ROS_DOMAIN_ID" and os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    yield
    remove_abandoned()


def domain_of_its_own(folder: Path) -> Iterator[RosBench]:
    bench = RosBench(free_domain(), folder)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def ros(tmp_path: Path, loopback: None) -> Iterator[RosBench]:
    yield from domain_of_its_own(tmp_path)


@pytest.fixture(scope="module")
def shared_ros(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RosBench]:
    """For a stack that serves all tests of a module, one after the other."""
    yield from domain_of_its_own(tmp_path_factory.mktemp("shared"))
