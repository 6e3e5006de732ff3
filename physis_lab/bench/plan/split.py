"""`physis bench split`: joint scheduling against an even split, run and not only simulated.

For each model of a plan file, the streams that `physis plan --even-split` counts are opened in the
engine on emulated devices: first one stream for each equal group of devices, then all of them
sharing the pool. A stream counts as kept if none of its chunks is late after the fill. The models
of `physis bench pool` run the same way with real weights on this machine's workers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs
from rich.console import Console

from physis_core.deployment.file import PlannedDeployment, load_deployment, write_deployment
from physis_core.engine.stream import StreamConfig
from physis_core.observe.figures import Figure, print_figures, result
from physis_core.observe.tables import print_table
from physis_core.plan.config import PlanConfig, load_plan
from physis_core.plan.deployed import deployment_fields
from physis_core.plan.even_split import split
from physis_core.plan.requests import Admitted
from physis_core.plan.slo_check import phase
from physis_core.types import UserError
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.plan.pool import MODELS, WORKERS, plan_of, profile_alone
from physis_lab.session.engine_run import EngineRun, EngineSession
from physis_ros.node.share import share_directory

SETTLE = 8
"""Chunks of each stream that are left out, while the pipeline fills and the pacer settles."""
REAL_LOAD = 0.5
"""Share of one worker that one stream of a real model takes."""
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """`planned` streams were opened; `kept` of them had no late chunk. `late`: share of all chunks.
    `excess_s`: the latest chunk's exit after its deadline, at least 0.
    """

    planned: int
    kept: int
    late: float
    excess_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    model: str
    devices: str
    period_s: float
    even: Side
    joint: Side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--file",
        type=Path,
        default=share_directory() / "config/plan/reproduction_480p.yaml",
        help="plan file; each of its models needs a stream that states its SLO",
    )
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="of the file, or wide, deep")
    parser.add_argument("--chunks", type=int, default=12, help="of each stream, after settling")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, chunks=2)
    config = load_plan(args.file)
    slos = {group.model: group for group in config.streams}
    names = [*config.models, *MODELS]
    wanted = names if args.only is None else args.only
    for name in wanted:
        if name not in names:
            raise UserError("only", name, f"must be one of {', '.join(names)}")
        if name in config.models and name not in slos:
            raise UserError("streams", name, "this model needs a stream that states its SLO")
    torch.set_num_threads(1)
    rows = []
    for name in wanted:
        console.print(f"runs {name}", highlight=False)
        one = _emulated(config, name) if name in config.models else _real(name, console)
        row = row_of(one, args.chunks)
        rows.append(row)
        console.print(
            f"  even: {row.even.kept} of {row.even.planned} kept; "
            f"joint: {row.joint.kept} of {row.joint.planned} kept",
            highlight=False,
        )
    _print(rows, console)
    figures = figures_of(rows)
    print_figures("joint against even split, run", figures, console)
    plan = {"file": str(args.file), "models": wanted, "chunks": args.chunks, "settle": SETTLE}
    return {**result(figures, plan), "rows": [asdict(row) for row in rows]}


def figures_of(rows: Sequence[Row]) -> dict[str, Figure]:
    """By row, the streams that joint scheduling keeps over those that the even split keeps."""
    return {
        f"split.joint_over_even_{row.model}": Figure(
            value=row.joint.kept / row.even.kept if row.even.kept else float("inf"),
            unit="ratio",
            aim=1.0,
            better="higher",
        )
        for row in rows
    }


def _emulated(config: PlanConfig, name: str) -> PlanConfig:
    """The file's pool with one model, on emulated devices, whatever it runs on otherwise."""
    streams = tuple(group for group in config.streams if group.model == name)[:1]
    models = {name: replace(config.models[name], name=name)}
    return replace(config, models=models, streams=streams, device="emulated", runs={})


def _real(name: str, console: Console) -> PlanConfig:
    """A real model on this machine's workers. A stream takes `REAL_LOAD` of one of them."""
    measured = {name: profile_alone(name, console)}
    return plan_of(measured, copies=WORKERS, load=REAL_LOAD)


def row_of(config: PlanConfig, chunks: int) -> Row:
    """Plan one model's streams both ways and run both."""
    ((name, profile),) = config.models.items()
    group = config.streams[0]
    found = split(profile, config.pool, group.slo, config.policy)
    for way, streams in (("even split", found.even), ("joint schedule", found.joint)):
        if not streams:
            raise UserError("streams", group.name, f"no {way} keeps its SLO")
    emulated = config.device == "emulated"
    return Row(
        model=name,
        devices=f"{config.pool.devices} {'emulated' if emulated else config.device}",
        period_s=group.slo.period_s,
        even=_run(config, found.even, chunks),
        joint=_run(config, found.joint, chunks),
    )


def _run(config: PlanConfig, admitted: Sequence[Admitted], chunks: int) -> Side:
    """The streams in one engine, from a deployment file as `physis plan --out` writes it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deployment.yaml"
        fields = deployment_fields(config, {config.streams[0].name: admitted}, path.parent)
        bind = config.device != "emulated"
        fields = structs.replace(fields, engine=structs.replace(fields.engine, bind_cores=bind))
        write_deployment(fields, path, "Written by `physis bench split`.")
        planned = load_deployment(path)
    configs = stream_configs(planned, admitted)
    begin_s = [phase(n) * s.slo.period_s for n, s in enumerate(planned.streams)]
    with EngineSession(planned.deployment, timeout_s=TIMEOUT_S) as session:
        return side_of(session.run(configs, chunks=chunks + SETTLE, begin_s=begin_s))


def stream_configs(
    planned: PlannedDeployment, admitted: Sequence[Admitted]
) -> tuple[StreamConfig, ...]:
    """The streams with the same allowances as in the plan's own simulation."""
    return tuple(
        StreamConfig(
            stream_id=stream.stream_id,
            period_s=stream.slo.period_s,
            route=stream.route,
            expected_response_s=1.5 * one.plan.relaxed_response_s,
            margin_s=0.25 * stream.slo.period_s,
            hold=False,
        )
        for stream, one in zip(planned.streams, admitted, strict=True)
    )


def side_of(run: EngineRun) -> Side:
    excess_s = [own.exit_s - own.deadline_s for own in (one.steady(SETTLE) for one in run.streams)]
    every = np.concatenate(excess_s)
    return Side(
        planned=len(excess_s),
        kept=sum(not (one > 0.0).any() for one in excess_s),
        late=float((every > 0.0).mean()),
        excess_s=max(0.0, float(every.max())),
    )


def _print(rows: Sequence[Row], console: Console) -> None:
    print_table(
        console,
        "streams run; late: share of all chunks, and the latest of them",
        ("model", "devices", "SLO ms", "way", "planned", "kept", "late", "by ms"),
        (
            (
                row.model,
                row.devices,
                f"{1e3 * row.period_s:.0f}",
                way,
                side.planned,
                side.kept,
                f"{100 * side.late:.1f}%",
                f"{1e3 * side.excess_s:.1f}",
            )
            for row in rows
            for way, side in (("even", row.even), ("joint", row.joint))
        ),
        left=("model", "devices", "way"),
    )
