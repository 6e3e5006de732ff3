"""`physis bench start`: how long a person waits after `physis up wam`, and for what.

All nodes of the stack start at once, with the simulated arm, as `physis up wam` starts them. Each
node says how long its process took for the imports, for making the node (rclpy and DDS) and for
configuring (model, warm-up, threads). Then observations, a chunk and its plan pass through, and
safety_node says that the first trajectory is on its way to the robot.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Mapping, Sequence
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
from physis_ros.node.share import share_directory
from physis_ros.stack.description import load_stack
from physis_ros.stack.options import Options
from physis_ros.stack.resolution import resolve
from physis_ros.stack.supervisor import Event, Supervisor
from physis_ros.stack.transport import remove_abandoned

AIM_S = 8.0
LIMIT_S = 120.0
PARTS = ("imports", "node", "configure")
_LINE = re.compile(
    rf"{STARTED} (?P<all>[\d.]+) s: imports (?P<imports>[\d.]+), node (?P<node>[\d.]+), "
    r"configure (?P<configure>[\d.]+)"
)


@dataclass(slots=True)
class StartTimes:
    """Seconds of one start. `nodes`: by node, the parts of its own start and `all`. Since the
    start of all, `active_s`: the last node was ready; `first_s`: the first trajectory left."""

    nodes: dict[str, dict[str, float]] = field(default_factory=dict)
    active_s: float = 0.0
    first_s: float = 0.0

    def take(self, event: Event, since_s: float) -> None:
        """A line of a node, `since_s` after the start."""
        found = _LINE.search(event.text)
        if found:
            self.nodes[event.process] = {
                part: float(text) for part, text in found.groupdict().items()
            }
            self.active_s = since_s
        elif FIRST_TRAJECTORY in event.text:
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
        RuntimeError: a node ended, or no trajectory within LIMIT_S.
    """
    remove_abandoned()
    share = share_directory()
    runs = resolve(load_stack("wam", share), Options(), share)
    times = StartTimes()
    lines: list[str] = []
    begun_s = time.monotonic()
    with Supervisor(
        [run.process() for run in runs], environment=loopback_environment(choose())
    ) as supervisor:
        while not times.first_s:
            for event in supervisor.poll(timeout_s=0.02):
                lines.append(f"{event.process}: {event.text}")
                times.take(event, time.monotonic() - begun_s)
            waited_s = time.monotonic() - begun_s
            if supervisor.failure is not None or waited_s > LIMIT_S:
                reason = supervisor.failure or f"no trajectory within {LIMIT_S:g} s"
                raise RuntimeError("\n".join([reason, *lines[-20:]]))
    return times


def figures_of(starts: Sequence[StartTimes]) -> dict[str, Figure]:
    return {
        "start.first_trajectory_s": repeated([one.first_s for one in starts], "s", aim=AIM_S),
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
    nodes: list[Mapping[str, float]] = [one.nodes[name] for one in starts if name in one.nodes]
    return [node[part] for node in nodes]


def _median(values: Sequence[float]) -> float:
    return repeated(values, "s").value
