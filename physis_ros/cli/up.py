"""`physis up STACK`: runs a stack's nodes on this machine, each in its own process, until Ctrl-C.

The same description as `launch/*.launch.py`, for people without `ros2 launch`.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from physis_core.types import UserError
from physis_ros.cli.up_progress import StartProgress
from physis_ros.node.share import share_directory
from physis_ros.stack.description import load_stack, stack_names
from physis_ros.stack.environment import process_environment
from physis_ros.stack.options import CHOICES, REPEATED, Options, parse_cameras, parse_set
from physis_ros.stack.parameter_layers import as_data, table
from physis_ros.stack.reach import reach_of
from physis_ros.stack.resolution import notes, resolve
from physis_ros.stack.supervisor import Event, StopTimes, Supervisor
from physis_ros.stack.transport import remove_abandoned

SUMMARY = "run a stack of nodes: prefixed logs, respawn, orderly stop on Ctrl-C"

COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(stack_names(share_directory()))
    parser.add_argument("stack", metavar="STACK", help=f"{names}; or the path of such a file")
    add_stack_arguments(parser)


def add_stack_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a stack, the same as the launch files' arguments."""
    for name, (default, text) in CHOICES.items():
        option = f"--{name.replace('_', '-')}"
        if name == "use_sim_time":
            parser.add_argument(option, action="store_true", help=text)
        elif name in REPEATED:
            metavar = "FILE" if name == "params_file" else name.upper()
            text = f"{text} (may be repeated)"
            parser.add_argument(option, action="append", default=[], metavar=metavar, help=text)
        else:
            parser.add_argument(option, default=default, help=text)
    parser.add_argument(
        "--duration-s", type=float, default=0.0, help="stop after this many seconds (0: never)"
    )
    parser.add_argument(
        "--print-parameters",
        action="store_true",
        help="print each node's parameters and what set them, and start nothing",
    )


def options_from(args: argparse.Namespace) -> Options:
    return Options(
        namespace=args.namespace,
        params_files=tuple(Path(path) for path in args.params_file),
        robot=args.robot,
        use_sim_time=args.use_sim_time,
        engine=args.engine,
        policy=args.policy,
        policy_contract=args.policy_contract,
        model=args.model,
        urdf=args.urdf,
        joint_prefix=args.joint_prefix,
        cameras=parse_cameras(args.cameras),
        controller_topic=args.controller_topic,
        log_level=args.log_level,
        remaps=tuple(args.remap),
        sets=tuple(parse_set(text) for text in args.set),
    )


class LogPrinter:
    """Prints events as lines with the process's name in front, coloured on a terminal."""

    def __init__(self, names: list[str], out: TextIO) -> None:
        self._width = max(map(len, names), default=0)
        self._colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
        self._out = out
        self._coloured = out.isatty() and "NO_COLOR" not in os.environ

    def __call__(self, event: Event) -> None:
        text = event.text or event.kind
        if event.kind != "line":
            text = f"-- {text}"
        prefix = f"{event.process:<{self._width}} |"
        if self._coloured:
            prefix = f"\033[{self._colours[event.process]}m{prefix}\033[0m"
        self._out.write(f"{prefix} {text}\n")
        self._out.flush()


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP in a list; the process does not end by them."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(args: argparse.Namespace) -> dict[str, Any]:
    if not (math.isfinite(args.duration_s) and args.duration_s >= 0.0):
        raise UserError("duration_s", args.duration_s, "must be 0 or more")
    share = share_directory()
    stack = load_stack(args.stack, share)
    options = options_from(args)
    runs = resolve(stack, options, share)
    if args.print_parameters:
        settings = {node.label: node.settings for node in runs}
        print("\n".join(table(settings)))
        return {"ok": True, "stack": stack.name, "parameters": as_data(settings)}
    reach = reach_of(runs, os.environ)
    environment = process_environment({**os.environ, **reach.environment})
    remove_abandoned()
    processes = [node.process() for node in runs]
    names = [process.name for process in processes]
    say = LogPrinter(names, sys.stdout)
    print(f"physis up {stack.name}: {', '.join(names)} (Ctrl-C stops all)", flush=True)
    for line in (*filter(None, [reach.line]), *notes(runs, options)):
        print(line, flush=True)
    progress = StartProgress(names)
    respawns = dict.fromkeys(names, 0)
    begun_s = time.monotonic()
    supervisor = Supervisor(processes, environment=environment, stop_times=StopTimes())
    with stop_requests() as requests:
        try:
            supervisor.start()
            while not (requests or supervisor.failure or supervisor.idle):
                if args.duration_s and time.monotonic() - begun_s >= args.duration_s:
                    break
                if line := progress.look(time.monotonic()):
                    print(f"physis up {stack.name}: {line}", flush=True)
                for event in supervisor.poll(timeout_s=0.2):
                    say(event)
                    progress.take(event)
                    if event.kind == "respawn":
                        respawns[event.process] += 1
        finally:
            ended_alone = supervisor.idle and not requests
            supervisor.stop(on_event=say)
    failure = supervisor.failure
    if failure is None and supervisor.lost:
        failure = "; ".join(supervisor.lost.values())
    if failure is None and ended_alone:
        failure = "every node ended by itself"
    print(f"physis up {stack.name}: stopped" + (f": {failure}" if failure else ""), flush=True)
    return {
        "ok": failure is None,
        "stack": stack.name,
        "nodes": names,
        "failure": failure,
        "refused": supervisor.refused,
        "lost_robots": dict(supervisor.lost),
        "respawns": respawns,
        "ran_s": time.monotonic() - begun_s,
    }
