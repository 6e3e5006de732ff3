"""Shared by engine_node and world_node: checks of stream names, start of the engine, log lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.node import Node
from rclpy.timer import Timer

from physis_core.engine.engine import Engine
from physis_core.types import UserError
from physis_ros.node.waiting import WaitNotice

_SWITCH_S = 5e-4


def check_stream_names(ids: Sequence[str], namespaces: Sequence[str]) -> None:
    """Raise UserError if streams and namespaces differ in number, or one is given twice."""
    if len(ids) != len(namespaces):
        raise UserError("stream_namespaces", list(namespaces), f"needs one for each of {list(ids)}")
    for name, values in (("stream_ids", ids), ("stream_namespaces", namespaces)):
        if len(set(values)) != len(values):
            raise UserError(name, list(values), "holds a value twice")


def start_engine(
    engine: Engine,
    timeout_s: float,
    given_up: Callable[[], bool],
    say: Callable[[str], object],
) -> None:
    """Start the workers and wait until all are warm. `say` is given a line for the log where that
    takes seconds.

    Raises:
        UserError: the deployment is wrong.
        TimeoutError: the workers are not ready in time; another start may succeed.
        InterruptedError: `given_up` became true.
    """
    count = engine.deployment.workers
    who = f"{count} worker{'' if count == 1 else 's'}" if count else "a worker in this process"
    models = ", ".join(ref.label for ref in engine.deployment.models.values())
    say(f"starts {who} with {models}")
    notice = WaitNotice()
    waits_for = f"{who} to load the model and warm it up, at most {timeout_s:g} s"

    def asked() -> bool:
        line = notice.look(waits_for, time.monotonic())
        if line:
            say(line)
        return given_up()

    try:
        engine.start(timeout_s=timeout_s, given_up=asked)
    except TimeoutError as error:
        raise TimeoutError(
            f"start_timeout_s: {timeout_s:g}: the workers are not ready: {error}"
        ) from error


def let_engine_threads_run() -> None:
    """Bound how long the engine's threads wait for a callback that holds the interpreter."""
    sys.setswitchinterval(_SWITCH_S)


def destroy_handlers(node: Node, timer: Timer | None, services: Sequence[Any]) -> None:
    """Destroy an active node's timer and services; `timer` is None if it was never active."""
    if timer is not None:
        node.destroy_timer(timer)
    for service in services:
        node.destroy_service(service)
