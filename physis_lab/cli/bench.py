"""`physis bench NAME`: one measured benchmark, as a table and as JSON."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from physis_core.types import UserError
from physis_ros.cli.main import OneLineParser

SUMMARY = "measure one part of the system: a table of figures with spread and aim"

# Names and summaries are here, so that `physis bench --help` loads no benchmark.
BENCHMARKS: Mapping[str, tuple[str, str]] = {
    "pipeline": (
        "physis_lab.bench.engine.pipeline",
        "the five partitions on one model, two processes against one, and a peer",
    ),
    "batching": (
        "physis_lab.bench.engine.batching",
        "same-block batches against taking turns on one device",
    ),
    "scale": (
        "physis_lab.bench.engine.scale",
        "200 emulated stages on 200 emulated devices through the real queues",
    ),
    "links": ("physis_lab.bench.engine.links", "one hop between two processes against bare gloo"),
    "recovery": (
        "physis_lab.bench.engine.recovery",
        "kill -9 of a worker: time to return by snapshot or rebuild, and the cost of each",
    ),
    "wavefront": (
        "physis_lab.bench.engine.wavefront",
        "a picture of which stage worked on which chunk when, from real runs",
    ),
    "world": (
        "physis_lab.bench.engine.world",
        "frames a second of the world model, with decoding and without it",
    ),
    "placement": (
        "physis_lab.bench.plan.placement",
        "placement against the exact optimum, and the time of an admission decision",
    ),
    "fidelity": (
        "physis_lab.bench.plan.fidelity",
        "the simulator against real runs of the engine on this machine",
    ),
    "pool": (
        "physis_lab.bench.plan.pool",
        "a plan of two models on this machine: plan, simulation and run of it side by side",
    ),
    "split": (
        "physis_lab.bench.plan.split",
        "joint scheduling against an even split: the streams that keep their SLO in real runs",
    ),
    "start": (
        "physis_lab.bench.robot.start",
        "from `physis up wam` to the first trajectory, and where each node's time goes",
    ),
    "ros-path": (
        "physis_lab.bench.robot.ros_path",
        "capture to command through the nodes, against a bare relay",
    ),
    "policy-wire": (
        "physis_lab.bench.robot.policy_wire",
        "CPU time and duration of a request on openpi's wire, against a bare websocket",
    ),
    "safety": (
        "physis_lab.bench.robot.safety",
        "safety loop jitter under load, and how the arm comes to rest when processes die",
    ),
}


class _LazyParser(OneLineParser):
    """Learns its arguments from the benchmark's module when they are first needed."""

    fill: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        if self.fill is not None:
            fill, self.fill = self.fill, None
            fill(self)
        return super().parse_known_args(args, namespace)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(
        dest="bench", metavar="NAME", required=True, parser_class=_LazyParser
    )
    for name, (module_name, summary) in BENCHMARKS.items():
        one = names.add_parser(name, help=summary, description=summary)
        one.fill = _filler(name, module_name)


def run(args: argparse.Namespace) -> dict[str, Any]:
    module = importlib.import_module(BENCHMARKS[args.bench][0])
    outcome: dict[str, Any] = module.run(args, Console())
    return outcome


def _filler(name: str, module_name: str) -> Callable[[argparse.ArgumentParser], None]:
    def fill(parser: argparse.ArgumentParser) -> None:
        if importlib.util.find_spec(module_name) is None:
            raise UserError("NAME", name, "is not in this installation")
        importlib.import_module(module_name).add_arguments(parser)
        # `--json` may also follow the name; without it, the one before the name stays.
        parser.add_argument(
            "--json", metavar="FILE", type=Path, default=argparse.SUPPRESS, help="write the result"
        )

    return fill
