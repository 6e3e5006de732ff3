"""`physis bench safety`: jitter of the safety loop, and how the arm comes to rest after kills.

Each repetition starts the demo's stack with real processes (`safety_stack`). First it measures the
safety loop with every core busy, beside a bare loop without work. Then it kills (SIGKILL) the
engine, the buffer, and everything except the robot. Two more parts measure the start-up time of
safety_node, and hand-overs between chunks over many random sequences (`handover`).

Two parts need no processes: random chunk series through buffer, safety and controller
(`random_series`), and fault trials by random search (`fault_trials`).
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.types import UserError
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.robot import handover
from physis_lab.bench.robot.handover import HandoverResult
from physis_lab.bench.robot.safety_rest import Rest
from physis_lab.bench.robot.safety_stack import StackRun, StackTrial
from physis_lab.bench.robot.safety_start import Start, start_once
from physis_lab.bench.robot.simulated.fault_trials import FAULTS, KindTotals, play_trials
from physis_lab.bench.robot.simulated.random_series import SeriesTotals, play_series
from physis_ros.stack.transport import remove_abandoned

AIM_P99_MS, AIM_P999_MS = 2.0, 5.0
AIM_START_S = 1.0
AIM_BRAKE_LAG_MS = 16.0
"""Two periods of the controller, 8 ms each."""
AIM_STEP_RAD = 1e-6
AIM_VELOCITY_STEP = 1.0 + 1e-9
"""In units of acceleration limit x tick, with room for rounding."""
STARTS = 5
_SEQUENCES_AT_ONCE = 100
_REASONS_SHOWN, _SEEDS_SHOWN = 3, 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=30.0, help="of the loop in each run")
    parser.add_argument(
        "--repeat", type=int, default=5, help="runs of the stack behind each figure"
    )
    parser.add_argument(
        "--sequences", type=int, default=10_000, help="random chunk sequences of the hand-over"
    )
    parser.add_argument(
        "--series", type=int, default=1_000, help="random chunk series through buffer and safety"
    )
    parser.add_argument(
        "--trials", type=int, default=10_000, help="simulated fault trials, of all kinds together"
    )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if not 5.0 <= args.seconds <= 600.0:
        raise UserError("seconds", args.seconds, "must be from 5 to 600")
    require_at_least(args, repeat=1, sequences=1, series=1, trials=len(FAULTS))
    remove_abandoned()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    runs: list[StackRun] = []
    with (
        tempfile.TemporaryDirectory(prefix="physis-safety-") as folder,
        Progress(*columns, console=console) as progress,
    ):
        starting = progress.add_task("starts of safety_node", total=STARTS, now="")
        starts: list[Start] = []
        for number in range(STARTS):
            starts.append(start_once(Path(folder) / f"start{number}"))
            progress.advance(starting)
        stacks = progress.add_task("runs of the stack", total=args.repeat, now="")
        for number in range(args.repeat):
            trial = StackTrial(
                Path(folder) / str(number),
                args.seconds,
                lambda now: progress.update(stacks, now=now),
            )
            runs.append(trial.run())
            progress.update(stacks, advance=1, now="")
        handing = progress.add_task("hand-overs", total=args.sequences, now="")
        handed = _handovers(args.sequences, lambda n: progress.advance(handing, n))
        playing = progress.add_task("chunk series", total=args.series, now="")
        series = SeriesTotals()
        for seed in range(args.series):
            series.add(play_series(seed))
            progress.advance(playing)
        trying = progress.add_task("fault trials", total=args.trials, now="")
        trials = play_trials(
            args.trials, seed=0, kinds=tuple(FAULTS), tell=lambda n: progress.advance(trying, n)
        )
    # Killed processes leave their shared memory behind.
    remove_abandoned()
    figures = _figures(runs, starts, handed) | _series_figures(series) | _trial_figures(trials)
    print_figures("Safety: loop, rest after kills, start, hand-over, faults", figures, console)
    console.print(trial_table(trials))
    config = {
        "seconds": args.seconds,
        "repeat": args.repeat,
        "starts": STARTS,
        "sequences": args.sequences,
        "kills": [[_plain(rest) for rest in run.rests] for run in runs],
        "realtime": sorted({run.realtime or "granted" for run in runs}),
        "chunks_accepted": handed.chunks_accepted,
        "chunks_refused": handed.chunks_refused,
        "series": args.series,
        "windows": dict(series.judged.most_common()),
        "trials": {kind: _plain_trials(one) for kind, one in trials.items()},
    }
    return result(figures, config)


def _figures(
    runs: Sequence[StackRun], starts: Sequence[Start], handed: HandoverResult
) -> dict[str, Figure]:
    safety, bare = [run.safety for run in runs], [run.bare for run in runs]
    figures = {
        "safety.jitter_ms_p99": repeated([x.p99_ms for x in safety], "ms", aim=AIM_P99_MS),
        "safety.jitter_ms_p999": repeated([x.p999_ms for x in safety], "ms", aim=AIM_P999_MS),
        "safety.lost_ticks": _summed([x.lost for x in safety], aim=0.0),
        "safety.lost_ticks_excess": _summed(
            [max(0, ours.lost - theirs.lost) for ours, theirs in zip(safety, bare)], aim=0.0
        ),
        "safety.bare_jitter_ms_p99": repeated([x.p99_ms for x in bare], "ms"),
        "safety.bare_jitter_ms_p999": repeated([x.p999_ms for x in bare], "ms"),
        "safety.bare_lost_ticks": _summed([x.lost for x in bare]),
        "safety.engine_cpu": repeated([run.engine_cpu for run in runs], "cores"),
    }
    for name in ("engine", "buffer", "all"):
        rests = [rest for run in runs for rest in run.rests if rest.killed == name]
        figures[f"safety.rest_s_{name}_killed"] = repeated([r.rest_s for r in rests], "s")
    for name in ("engine", "buffer"):
        lags = [1e3 * r.brake_lag_s for run in runs for r in run.rests if r.killed == name]
        figures[f"safety.brake_lag_ms_{name}_killed"] = _largest(lags, "ms", aim=AIM_BRAKE_LAG_MS)
    figures |= {
        "safety.limit_violations": _summed([run.violations for run in runs], aim=0.0),
        "safety.start_s": repeated([start.wall_s for start in starts], "s", aim=AIM_START_S),
        "safety.start_cpu_s": repeated([start.cpu_s for start in starts], "s"),
        "safety.handover_position_step_rad": Figure(
            value=handed.position_step_rad, unit="rad", aim=AIM_STEP_RAD
        ),
        "safety.handover_velocity_step": Figure(
            value=handed.velocity_step_ratio, unit="x limit x tick", aim=AIM_VELOCITY_STEP
        ),
    }
    return figures


def _series_figures(series: SeriesTotals) -> dict[str, Figure]:
    refused = sum(n for kind, n in series.judged.items() if kind.startswith("refused"))
    return {
        "safety.windows_refused": Figure(value=float(refused), unit="", aim=0.0),
        "safety.series_violations": Figure(value=float(series.violations), unit="", aim=0.0),
    }


def _trial_figures(trials: Mapping[str, KindTotals]) -> dict[str, Figure]:
    violations = sum(one.violations for one in trials.values())
    restless = sum(len(one.restless_seeds) for one in trials.values())
    figures = {
        "safety.trial_violations": Figure(value=float(violations), unit="", aim=0.0),
        "safety.trials_without_rest": Figure(value=float(restless), unit="", aim=0.0),
    }
    for kind, one in trials.items():
        figures[f"safety.trial_rest_s_p99_{kind}"] = Figure(value=one.rest_s(99.0), unit="s")
    return figures


def trial_table(trials: Mapping[str, KindTotals]) -> Table:
    """One row for each kind of fault."""
    table = Table(title="Fault trials in simulation")
    for name in ("fault", "trials", "violations", "rest p50 [s]", "rest p99 [s]", "said most"):
        table.add_column(name, justify="left" if name in ("fault", "said most") else "right")
    for kind, one in trials.items():
        said = "; ".join(f"{n} x {reason}" for reason, n in one.said.most_common(_REASONS_SHOWN))
        table.add_row(
            kind.replace("_", " "),
            str(one.trials),
            str(one.violations),
            f"{one.rest_s(50.0):.2f}",
            f"{one.rest_s(99.0):.2f}",
            said,
        )
    return table


def _plain_trials(one: KindTotals) -> dict[str, Any]:
    return {
        "trials": one.trials,
        "violations": one.violations,
        "violated_seeds": one.violated_seeds[:_SEEDS_SHOWN],
        "without_rest_seeds": one.restless_seeds[:_SEEDS_SHOWN],
        "acceleration_share": one.acceleration,
        "moving_at_stop": len(one.rests_s),
        "rest_s_p50": one.rest_s(50.0),
        "rest_s_p99": one.rest_s(99.0),
        "said": dict(one.said.most_common()),
        "windows": dict(one.judged.most_common()),
    }


def _summed(values: Sequence[float], *, aim: float | None = None) -> Figure:
    """Sum of counts over all runs; the spread is between runs."""
    return _with_spread(float(sum(values)), values, "", aim)


def _largest(values: Sequence[float], unit: str, *, aim: float) -> Figure:
    """Largest of all trials, for a bound that no trial may exceed."""
    return _with_spread(max(values), values, unit, aim)


def _with_spread(value: float, values: Sequence[float], unit: str, aim: float | None) -> Figure:
    spread = (max(values) - min(values)) / 2 if len(values) > 1 else math.nan
    return Figure(value=value, unit=unit, spread=spread, aim=aim)


def _handovers(sequences: int, tell: Callable[[int], None]) -> HandoverResult:
    """Run in portions, each with its own random sequences, so that progress shows."""
    parts: list[HandoverResult] = []
    left = sequences
    while left > 0:
        parts.append(handover.measure(min(left, _SEQUENCES_AT_ONCE), seed=len(parts)))
        left -= parts[-1].sequences
        tell(parts[-1].sequences)
    return handover.together(parts)


def _plain(rest: Rest) -> dict[str, Any]:
    return {
        "killed": rest.killed,
        "speed_rad_s": rest.speed_rad_s,
        "rest_s": rest.rest_s,
        "brake_lag_ms": 1e3 * rest.brake_lag_s,
    }
