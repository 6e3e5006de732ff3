"""`physis demo`: simulated arm, engine and safety together on this machine, and a report."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from physis_core.types import UserError
from physis_lab.session.pace import Pace, choose_pace, why_too_slow
from physis_ros.stack.options import CHOICES

SUMMARY = "run a simulated arm, its camera, the engine, buffer and safety; report, plot and film"

START_LIMIT_S = 300.0
STARTING = (
    "Starting: six nodes and two workers import their libraries, the workers warm the model up, the"
    " simulated arm opens its camera. Some 10 s on two cores, longer on fewer."
)
POLL_S = 0.25
VIDEO_FPS = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--duration", type=float, default=30.0, metavar="S", help="seconds of motion"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="record folder (default: runs/demo-DATE-TIME)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the target's path")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        metavar="NODE.PARAM=VALUE",
        help="set a node's parameter, e.g. engine_node.partition=step; may be repeated",
    )
    for name in ("policy", "policy_contract"):
        text = CHOICES[name][1]
        parser.add_argument(f"--{name.replace('_', '-')}", default="", help=text)
    parser.add_argument("--show", action="store_true", help="open a live window of the camera")
    parser.add_argument("--verbose", action="store_true", help="print the output of the nodes")


def run(args: argparse.Namespace) -> dict[str, Any]:
    # Heavy imports come after the arguments are known to be right.
    from physis_core.observe.machine import machine
    from physis_core.observe.plots import plot_run
    from physis_core.observe.result_file import write_result
    from physis_core.observe.tables import print_report
    from physis_lab.session.run_record import RunRecord, read_run, report_of
    from physis_lab.session.session import SessionPlan, plan_session
    from physis_lab.session.speed import measure_capacity_cores
    from physis_ros.node.domain import choose

    if not (math.isfinite(args.duration) and 3.0 <= args.duration <= 3600.0):
        raise UserError("duration", args.duration, "must be from 3 to 3600 seconds")
    if args.seed < 0:
        raise UserError("seed", args.seed, "must not be negative")
    if args.show and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        raise UserError("show", True, "there is no screen (DISPLAY is not set)")
    out = args.out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    plan: SessionPlan = plan_session(
        out,
        domain=choose(),
        seed=args.seed,
        sets=args.sets,
        show=args.show,
        policy=args.policy,
        policy_contract=args.policy_contract,
    )
    console = Console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(f"Records go to {out}")
    pace = choose_pace(measure_capacity_cores(), plan.full_pace())
    plan = plan.at(pace)
    say(pace.line())
    say(STARTING)

    reason = play(plan, args.duration, console, verbose=args.verbose)
    if reason:
        console.print(f"physis demo: {reason}", markup=False, highlight=False)
        return {"ok": False, "reason": reason}

    record: RunRecord = read_run(out)
    report = report_of(record, config=plan.config(args.duration), machine=machine())
    plot_run(
        record.tables,
        record.arm,
        out / "run.png",
        period_ms=plan.period_ms,
        warmup_s=record.warmup_s,
    )
    _film(out, record, console)
    print_report(report, console)
    report["pace"] = dataclasses.asdict(pace)
    report["verdict"], line = _verdict(report, pace)
    say(line)
    report["ok"] = report["verdict"] == "good"
    write_result(out / "report.json", report)
    for name in ("report.json", "run.png", "camera.mp4"):
        console.print(f"  {out / name}", markup=False, highlight=False)
    return report


def play(plan: Any, duration_s: float, console: Console, *, verbose: bool) -> str:
    """Start the processes, wait for the first action, run for `duration_s`, stop them in order.

    Returns one line that says why the run ended early; empty if it did not.

    Raises:
        UserError: a node refused its input; the node's line is passed on.
    """
    from physis_lab.session.play import NodeLogs, interrupts, why_it_failed
    from physis_ros.stack.supervisor import Supervisor
    from physis_ros.stack.transport import remove_abandoned

    remove_abandoned()
    supervisor = Supervisor(plan.processes, environment=plan.environment)
    logs = NodeLogs(plan.directory / "logs", console if verbose else None)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with interrupts() as interrupted, Progress(*columns, console=console) as progress:
        try:
            supervisor.start()
            starting = progress.add_task("starting the nodes", total=None, now="")
            started_s = time.monotonic()
            while (first := plan.first_played_s()) is None:
                logs.take(supervisor.poll(POLL_S))
                progress.update(starting, now=logs.last_line)
                if supervisor.failure is not None:
                    return why_it_failed(supervisor.failure, logs, verb="demo")
                if interrupted():
                    return "interrupted before the first action"
                if time.monotonic() - started_s > START_LIMIT_S:
                    return f"no action in {START_LIMIT_S:.0f} s; see {logs.directory}"
            progress.update(starting, total=1, completed=1, now="")
            running = progress.add_task("running", total=duration_s, now="")
            while (run_s := time.monotonic() - first) < duration_s and not interrupted():
                logs.take(supervisor.poll(POLL_S))
                if supervisor.failure is not None:
                    return why_it_failed(supervisor.failure, logs, verb="demo")
                progress.update(running, completed=run_s, now=plan.now_line())
            progress.update(running, completed=duration_s)
        finally:
            stopping = progress.add_task("stopping the nodes", total=None, now="")
            supervisor.stop(lambda event: logs.take([event]), first=("recorder_node",))
            progress.update(stopping, total=1, completed=1)
            logs.close()
    return ""


def _film(out: Path, record: Any, console: Console) -> None:
    from physis_core.observe.framelog import read_frames
    from physis_core.observe.video import write_video

    total = sum(1 for _ in read_frames(out / "front.frames"))
    with Progress(console=console) as progress:
        task = progress.add_task("drawing the film", total=total)
        write_video(
            out / "front.frames",
            record.tables.servo,
            out / "camera.mp4",
            fps=VIDEO_FPS,
            progress=lambda frames: progress.update(task, completed=frames),
        )


def _verdict(report: dict[str, Any], pace: Pace) -> tuple[str, str]:
    """`good`, `too slow` or `wrong`, and the line to print.

    `too slow` is a failed run on a machine that did not keep the pace. A run that went well is
    good on any machine; the line names the rates that were not kept.
    """
    slow = why_too_slow(report, pace)
    if _went_well(report):
        return "good", f"Verdict: good, on a slow machine ({slow})" if slow else "Verdict: good"
    if slow:
        return "too slow", f"Verdict: this machine was too slow to judge the run ({slow})"
    return "wrong", "Verdict: wrong; the machine kept the pace, so look at the nodes' logs"


def _went_well(report: dict[str, Any]) -> bool:
    """Chunks arrived, the commands had an age, the arm moved, safety ended in OK or LIMIT."""
    age = report["action_age_ms"]["servo"]
    return bool(
        report["chunks"] > 0
        and age["n"] > 0
        and math.isfinite(age["max"])
        and age["p50"] > 0
        and report["task"]["moved"]
        and report["safety"]["state"] in ("OK", "LIMIT")
    )
