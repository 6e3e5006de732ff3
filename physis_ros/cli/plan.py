"""`physis plan`: which deployment keeps an SLO, how many streams fit, and what that costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from physis_core.deployment.file import write_deployment
from physis_core.observe.result_file import check_folder
from physis_core.observe.tables import print_table
from physis_core.plan.config import PlanConfig, load_plan
from physis_core.plan.deployed import deployment_fields
from physis_core.plan.even_split import compare
from physis_core.plan.report import decide, plan_report
from physis_core.plan.simulation import simulation_of
from physis_core.types import UserError

SUMMARY = "find a deployment for an SLO and a pool of devices; show its capacity and its cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="YAML: pool, models, streams (config/plan)")
    parser.add_argument("--pareto", action="store_true", help="show the whole Pareto front")
    parser.add_argument(
        "--even-split",
        action="store_true",
        help="most streams of each model: equal groups of devices against joint scheduling",
    )
    parser.add_argument("--rows", type=int, default=24, help="most rows of each table (0: all)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the deployment that runs what was decided"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the tables")


def run(args: argparse.Namespace) -> dict[str, Any]:
    if args.rows < 0:
        raise UserError("rows", args.rows, "must not be negative")
    check_folder("plot", args.plot)
    check_folder("out", args.out)
    if args.out is not None and args.even_split:
        raise UserError("out", str(args.out), "an even split is only compared, not written")
    config = load_plan(args.file)
    if config.simulate is not None:
        # Only `physis simulate` uses this part, but its errors are reported here too.
        simulation_of(config)
    console = Console()
    if args.even_split:
        return _even_split(config, console)
    decision = decide(config)
    report = plan_report(config, decision, front=args.pareto)
    for name, model in report["models"].items():
        _print_model(name, model, args.rows, console)
    if config.streams:
        _print_admission(report["admission"], console)
    if args.plot is not None:
        from physis_core.observe.plots import plot_plan

        plot_plan(report["models"], args.plot)
        console.print(f"picture: {args.plot}")
    if args.out is not None:
        admitted = {one.group.name: one.admitted for one in decision.groups}
        fields = deployment_fields(config, admitted, args.out.parent)
        command = f"physis plan {args.file} --out {args.out}"
        write_deployment(fields, args.out, f"Written by `{command}`.")
        console.print(f"deployment: {args.out}")
    return {"ok": True, **report}


def _even_split(config: PlanConfig, console: Console) -> dict[str, Any]:
    found = []
    slos = {group.model: group.slo for group in config.streams}
    for name, profile in config.models.items():
        if name not in slos:
            raise UserError("streams", name, "this model needs a stream that states its SLO")
        found.append(compare(replace(profile, name=name), config.pool, slos[name], config.policy))
    print_table(
        console,
        f"most verified streams on {config.pool.devices} devices",
        ("model", "SLO", "even split", "devices per group", "joint", "joint / even"),
        (
            (
                one.model,
                f"{slos[one.model].period_s * 1e3:g} ms",
                one.even,
                one.even_devices,
                one.joint,
                f"{one.ratio:.2f}",
            )
            for one in found
        ),
        left=("model", "SLO"),
    )
    return {"ok": True, "even_split": [{**asdict(one), "ratio": one.ratio} for one in found]}


def _print_model(name: str, model: Mapping[str, Any], rows: int, console: Console) -> None:
    console.print(f"\n[bold]{name}[/bold] ({model['source']})")
    for assumption in model["assumptions"]:
        console.print(f"  {assumption}", highlight=False)
    if model["slo"] is not None:
        console.print(f"  SLO: {model['slo']}", highlight=False)
    if not model["table"]:
        console.print(f"  fits nowhere: {model['too_small']}", highlight=False)
        return
    headings = (
        *("devices", "shape", "interval ms", "p99 ms", "response ms", "GiB/device"),
        *("device-s/output", "SLO"),
    )
    shown = _thinned(model["table"], rows)
    print_table(
        console,
        "Pareto front" if model["pareto"] else "shortest interval by device count",
        headings,
        map(_cells, shown),
        left=("shape",),
    )
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


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["devices"],
        row["shape"],
        f"{row['output_interval_ms']:.4g}",
        f"{row['output_interval_p99_ms']:.4g}",
        f"{row['response_latency_ms']:.4g}",
        f"{row['memory_gib']:.1f}",
        f"{row['device_seconds_per_output']:.4g}",
        {None: "", True: "kept", False: "missed"}[row["keeps_slo"]],
    )


def _thinned(rows: list[Any], most: int) -> list[Any]:
    """At most `most` rows, evenly spaced, with the first and the last."""
    if most == 0 or len(rows) <= most:
        return rows
    if most == 1:
        return rows[:1]
    picked = sorted({round(i * (len(rows) - 1) / (most - 1)) for i in range(most)})
    return [rows[i] for i in picked]


def _print_admission(report: Mapping[str, Any], console: Console) -> None:
    headings = ("stream", "model", "requested", "admitted", "why not more")
    print_table(
        console,
        f"admission on {report['devices']} devices",
        headings,
        (
            (row["stream"], row["model"], row["asked"], row["admitted"], _why(row["refused"]))
            for row in report["streams"]
        ),
        left=headings,
    )
    console.print(
        f"  fullest device: memory {100 * report['memory_share']['max']:.0f}%,"
        f" time {100 * report['time_share']['max']:.0f}%;"
        f" {report['breaks_first']} runs out first",
        highlight=False,
    )
    costs = report["device_seconds_per_output"]
    if not costs and any(row["admitted"] for row in report["streams"]):
        console.print(
            "  the streams count different outputs, so there is no common cost per output; the"
            " tables show the cost of each model's output by itself",
            highlight=False,
        )
    for count, cost in costs.items():
        console.print(f"  {cost:.4g} device-seconds per on-time output ({count})", highlight=False)


def _why(refused: Mapping[str, str] | None) -> str:
    return "" if refused is None else f"{refused['reason']}; nearest: {refused['nearest']}"
