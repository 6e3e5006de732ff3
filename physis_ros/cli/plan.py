"""`physis plan`: which deployment keeps an SLO, how many streams fit, and what that costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from physis_core.deployment.fields import read_file
from physis_core.plan.config import PlanConfig, read_plan
from physis_core.plan.even_split import compare
from physis_core.plan.report import plan_report
from physis_core.plan.simulation_config import read_simulation
from physis_core.types import UserError

SUMMARY = "from an SLO and a pool of devices to a deployment, its capacity and its cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="YAML: pool, models, streams (config/plan)")
    parser.add_argument("--pareto", action="store_true", help="show the whole Pareto front")
    parser.add_argument(
        "--even-split",
        action="store_true",
        help="per model, the most verified streams on the pool: equal groups against joint",
    )
    parser.add_argument("--rows", type=int, default=24, help="most rows of each table (0: all)")
    parser.add_argument("--plot", type=Path, help="write the tables as a picture there")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.rows < 0:
        raise UserError("rows", args.rows, "must not be negative")
    if args.plot is not None and not args.plot.absolute().parent.is_dir():
        raise UserError("plot", str(args.plot), "its directory does not exist")
    fields = read_file(args.file)
    config = read_plan(fields, args.file.parent)
    if "simulate" in fields:
        # It is for `physis simulate`; what is wrong in the file is said all the same.
        read_simulation(fields.fields("simulate"), config)
    console = Console()
    if args.even_split:
        return _even_split(config, console)
    report = plan_report(config, front=args.pareto)
    for name, model in report["models"].items():
        _print_model(name, model, args.rows, console)
    if config.streams:
        _print_admission(report["admission"], console)
    if args.plot is not None:
        from physis_core.plan.plots import plot_tables

        plot_tables(report["models"], args.plot)
        console.print(f"picture: {args.plot}")
    return {"ok": True, **report}


def _even_split(config: PlanConfig, console: Console) -> dict[str, Any]:
    table = Table(title=f"most verified streams on {config.pool.devices} devices")
    for heading in ("model", "SLO", "even split", "devices a group", "joint", "joint / even"):
        table.add_column(heading, justify="left" if heading in ("model", "SLO") else "right")
    rows = []
    slos = {group.model: group.slo for group in config.streams}
    for name, profile in config.models.items():
        if name not in slos:
            raise UserError("streams", name, "this model needs a stream that states its SLO")
        found = compare(replace(profile, name=name), config.pool, slos[name], config.policy)
        rows.append({**asdict(found), "ratio": found.ratio})
        period = f"{slos[name].period_s * 1e3:g} ms"
        ratio = f"{found.ratio:.2f}"
        table.add_row(
            name, period, str(found.even), str(found.even_devices), str(found.joint), ratio
        )
    console.print(table)
    return {"ok": True, "even_split": rows}


def _print_model(name: str, model: Mapping[str, Any], rows: int, console: Console) -> None:
    console.print(f"\n[bold]{name}[/bold] ({model['source']})")
    for assumption in model["assumptions"]:
        console.print(f"  {assumption}", highlight=False)
    if model["slo"] is not None:
        console.print(f"  SLO: {model['slo']}", highlight=False)
    if not model["table"]:
        console.print(f"  fits nowhere: {model['too_small']}", highlight=False)
        return
    title = "Pareto front" if model["pareto"] else "shortest interval by device count"
    table = Table(title=title, title_justify="left")
    for heading in (
        "devices",
        "shape",
        "interval ms",
        "p99 ms",
        "response ms",
        "GiB/device",
        "device-s/output",
        "SLO",
    ):
        table.add_column(heading, justify="left" if heading == "shape" else "right")
    shown = _thinned(model["table"], rows)
    for row in shown:
        table.add_row(*_cells(row))
    console.print(table)
    if len(shown) < len(model["table"]):
        console.print(f"  {len(model['table'])} rows in all; --rows 0 shows them")
    if model["best"] is None:
        console.print(f"  {model['goal']}: no grouping keeps the SLO")
    else:
        best = model["best"]
        rate = "" if model["best_rate"] is None else f"; at most {model['best_rate']}"
        console.print(
            f"  {model['goal']}: {best['shape']} on {best['devices']} devices,"
            f" interval {best['output_interval_p99_ms']:.4g} ms (p99),"
            f" response {best['response_latency_ms']:.4g} ms{rate}",
            highlight=False,
        )


def _cells(row: Mapping[str, Any]) -> list[str]:
    keeps = {None: "", True: "kept", False: "missed"}[row["keeps_slo"]]
    return [
        str(row["devices"]),
        row["shape"],
        f"{row['output_interval_ms']:.4g}",
        f"{row['output_interval_p99_ms']:.4g}",
        f"{row['response_latency_ms']:.4g}",
        f"{row['memory_gib']:.1f}",
        f"{row['device_seconds_per_output']:.4g}",
        keeps,
    ]


def _thinned(rows: list[Any], most: int) -> list[Any]:
    """At most `most` rows, first and last included, spread evenly."""
    if most == 0 or len(rows) <= most:
        return rows
    if most == 1:
        return rows[:1]
    picked = sorted({round(i * (len(rows) - 1) / (most - 1)) for i in range(most)})
    return [rows[i] for i in picked]


def _print_admission(report: Mapping[str, Any], console: Console) -> None:
    table = Table(title=f"admission on {report['devices']} devices", title_justify="left")
    for heading in ("stream", "model", "asked", "admitted", "why not more"):
        table.add_column(heading)
    for row in report["streams"]:
        refused = row["refused"]
        why = ""
        if refused is not None:
            why = f"{refused['reason']}; nearest: {refused['nearest']}"
        table.add_row(row["stream"], row["model"], str(row["asked"]), str(row["admitted"]), why)
    console.print(table)
    console.print(
        f"  fullest device: memory {100 * report['memory_share']['max']:.0f}%,"
        f" time {100 * report['time_share']['max']:.0f}%;"
        f" {report['breaks_first']} breaks first",
        highlight=False,
    )
    if not report["device_seconds_per_output"] and any(
        row["admitted"] for row in report["streams"]
    ):
        console.print(
            "  the streams count different things, so the pool has no one price of an output: the"
            " tables say what each costs on devices of its own",
            highlight=False,
        )
    for count, cost in report["device_seconds_per_output"].items():
        console.print(f"  {cost:.4g} device-seconds per on-time output ({count})", highlight=False)
