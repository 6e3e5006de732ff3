"""Runs a node as a process, from its arguments to its exit code.

Threads: everything here, and every ROS callback, runs on the main thread.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions

from physis_core.types import UserError
from physis_ros.node.domain import domain_from
from physis_ros.node.startup import process_age_s
from physis_ros.node.system import keep_image_memory

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_USER = 2

STARTED = "started in"
"""How the line begins that says how long the process took to start, and for what."""

_STOP_LOOK_PERIOD_S = 0.05


class RunnableNode(Protocol):
    """What a process needs of its node; PhysisNode is one."""

    @property
    def exit_code(self) -> int:
        """What was asked for while it ran."""

    def end_by(self, stop: threading.Event) -> None:
        """Take the event that ends the process; the node may set it."""

    def autostart(self) -> int:
        """Begin to work. Returns an exit code."""

    def shut_down(self) -> None:
        """Leave the life cycle, whatever state it is in."""

    def get_logger(self) -> Any: ...
    def destroy_node(self) -> Any: ...


def main(node_class: Callable[[], RunnableNode], argv: Sequence[str] | None = None) -> int:
    """Run one node until a signal or a fault. Returns the exit code.

    0: stopped by SIGINT or SIGTERM. 1: a fault of ours. 2: bad input, one line on standard error.
    """
    imported_s = process_age_s()
    arguments = list(sys.argv if argv is None else argv)
    program = os.path.basename(arguments[0]) if arguments else "node"
    keep_image_memory()
    stop = threading.Event()
    # Handlers first, so that a stop during start-up is not lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    # Held back since the package was imported (startup.py).
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        # Fast DDS aborts the process on an id that is too high.
        domain_from(os.environ)
        rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
        node = node_class()
    except UserError as error:
        return _refuse(program, str(error))
    except RuntimeError as error:  # what rcl raises for bad arguments, files, domains
        return _refuse(program, str(error))
    made_s = process_age_s()
    node.end_by(stop)
    code = EXIT_FAULT
    try:
        code = node.autostart()
        if code == EXIT_OK:
            # `physis bench start` reads this line.
            done_s = process_age_s()
            node.get_logger().info(
                f"{STARTED} {done_s:.2f} s: imports {imported_s:.2f}, node "
                f"{made_s - imported_s:.2f}, configure {done_s - made_s:.2f}"
            )
            code = _spin(node, stop)
    finally:
        node.shut_down()
        node.destroy_node()
        rclpy.try_shutdown()
        # Everything is closed; a second signal must not change the exit code.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return code


def _spin(node: RunnableNode, stop: threading.Event) -> int:
    # Objects from start-up stay; keep the garbage collector from walking through them.
    gc.collect()
    gc.freeze()
    executor = _new_executor()
    executor.add_node(node)
    try:
        # spin() of the EventsExecutor neither fires timers nor lets signal handlers run.
        while not stop.is_set():
            executor.spin_once(timeout_sec=_STOP_LOOK_PERIOD_S)
    except ExternalShutdownException:
        node.get_logger().info("the ROS context was shut down")
    except Exception:  # noqa: BLE001  reported whole, and the process ends
        node.get_logger().fatal(f"a callback failed\n{traceback.format_exc()}")
        return EXIT_FAULT
    finally:
        executor.remove_node(node)
    return node.exit_code


def _new_executor() -> Any:
    try:
        from rclpy.experimental.events_executor import EventsExecutor
    except ImportError:  # before Kilted
        return SingleThreadedExecutor()
    return EventsExecutor()


def _refuse(program: str, reason: str) -> int:
    print(f"{program}: {' '.join(reason.split())}", file=sys.stderr, flush=True)
    rclpy.try_shutdown()
    return EXIT_USER
