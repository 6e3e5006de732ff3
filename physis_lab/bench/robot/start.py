"""`physis bench start`: how long a person waits after `physis up wam`, and for what.

The command runs as a person runs it, with the simulated arm, and its output is read. It starts all
nodes at once. Each says how long its process took for the imports, for making the node (rclpy and
DDS) and for configuring (model, workers, warm-up, camera). Then an observation, a chunk and its
plan pass through, and safety_node says that the first trajectory is on its way to the robot.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_lab.bench.arguments import require_at_least
from physis_lab.session.session import loopback_environment
from physis_ros.cli.up_progress import FIRST_TRAJECTORY
from physis_ros.node.domain import choose
from physis_ros.node.process import STARTED
from physis_ros.stack.transport import remove_abandoned

AIM_S = 8.0
LIMIT_S = 120.0
PARTS = ("imports", "node", "configure")
_STARTED = re.compile(
    rf"{STARTED} (?P<all>[\d.]+) s: imports (?P<imports>[\d.]+), node (?P<node>[\d.]+), "
    r"configure (?P<configure>[\d.]+)"
)
_BEGINS = re.compile(r"physis up wam: (?P<names>[^()]+) \(Ctrl-C")


@dataclass(slots=True)
class StartTimes:
    """Seconds of one start. `names`: the nodes that were started, `begun_s` after the command.
    `nodes`: by node, the parts of its own start and `all`. `active_s`: the last node was ready;
    `first_s`: the first trajectory left; both since the command."""

    names: tuple[str, ...] = ()
    begun_s: float = 0.0
    nodes: dict[str, dict[str, float]] = field(default_factory=dict)
    active_s: float = 0.0
    first_s: float = 0.0

    @property
    def complete(self) -> bool:
        return bool(self.first_s) and bool(self.names) and set(self.nodes) == set(self.names)

    def take(self, line: str, since_s: float) -> None:
        """A line of `physis up`, `since_s` after the command."""
        begins = _BEGINS.match(line)
        if begins:
            self.names = tuple(begins["names"].split(", "))
            self.begun_s = since_s
            return
        name, _, text = line.partition("|")
        found = _STARTED.search(text)
        if found:
            parts = found.groupdict().items()
            self.nodes[name.strip()] = {part: float(value) for part, value in parts}
            self.active_s = since_s
        elif FIRST_TRAJECTORY in text and not self.first_s:
            self.first_s = since_s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeat", type=int, default=3, help="starts behind each spread")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, repeat=1)
    starts = [
        start_once() for _ in track(range(args.repeat), description="starts", console=console)
    ]
    figures = figures_of(starts)
    print_figures("From `physis up wam` to the first trajectory", figures, console)
    console.print(parts_table(starts))
    return result(
        figures, {"repeat": args.repeat, "stack": "wam", "nodes": [one.nodes for one in starts]}
    )


def start_once() -> StartTimes:
    """Start the stack and stop it after its first trajectory.

    Raises:
        RuntimeError: it ended, or there is no trajectory within LIMIT_S.
    """
    remove_abandoned()
    times = StartTimes()
    lines: list[str] = []
    begun_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "physis_ros.cli.main", "up", "wam", "--duration-s", str(LIMIT_S)],
        env={**loopback_environment(choose()), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line.rstrip())
            times.take(line, time.monotonic() - begun_s)
            if times.complete:
                return times
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    raise RuntimeError(
        "\n".join([f"no trajectory of all nodes within {LIMIT_S:g} s", *lines[-20:]])
    )


def figures_of(starts: Sequence[StartTimes]) -> dict[str, Figure]:
    return {
        "start.first_trajectory_s": repeated([one.first_s for one in starts], "s", aim=AIM_S),
        "start.command_s": repeated([one.begun_s for one in starts], "s"),
        "start.all_active_s": repeated([one.active_s for one in starts], "s"),
        "start.after_active_s": repeated([one.first_s - one.active_s for one in starts], "s"),
        **{
            f"start.{name}_s": repeated(_values(starts, name, "all"), "s")
            for name in _names(starts)
        },
    }


def parts_table(starts: Sequence[StartTimes]) -> Table:
    """Where each node's start goes: medians of the repetitions."""
    table = Table(title="each node's own start, s", title_justify="left")
    table.add_column("node")
    for part in (*PARTS, "all"):
        table.add_column(part, justify="right")
    for name in _names(starts):
        table.add_row(
            name,
            *(f"{_median(_values(starts, name, part)):.2f}" for part in (*PARTS, "all")),
        )
    return table


def _names(starts: Iterable[StartTimes]) -> list[str]:
    return sorted({name for one in starts for name in one.nodes})


def _values(starts: Iterable[StartTimes], name: str, part: str) -> list[float]:
    return [one.nodes[name][part] for one in starts]


def _median(values: Sequence[float]) -> float:
    return repeated(values, "s").value
