"""What response latency costs, and how much of it the lookahead input recovers.

    python -m physis_lab.studies.latency_study \\
        --checkpoint checkpoints/physis_tiny_follow.safetensors --plot docs/images/latency.png

The fast closed loop runs at several response latencies, with the same episodes and noise, in these
ways:

    lookahead      the model's lookahead input is capture-to-exit; its points begin at the exit
    own times      lookahead input 0: points begin at the capture; expired ones are trimmed, as in
                   the buffer; after the last one the arm stops
    on arrival     lookahead input 0; the first point is commanded when the chunk arrives, however
                   old it is, as by a client without stamps
    every step     `lookahead` with a fresh observation at each denoising step (`refresh:
                   every_step`); each observation has its own time to the exit as its lookahead
    one lookahead  `every step`, but all observations have the lookahead of the newest one

In the last two the D steps of a chunk share its response equally, as on a balanced pipeline: step d
begins d/D of the response after the entry and takes the observation captured `observation_age_s`
before. Points begin at the exit. Action age counts from the oldest observation of the chunk, so a
refresh does not lower it; the report gives the age of the newest beside it.

The lookahead input is capped at the `lookahead_max_s` of the checkpoint's training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from physis_core.model.tiny.config import TinyConfig, read_config
from physis_core.observe.plots import save
from physis_core.observe.result_file import write_result
from physis_core.types import UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.chunk_schedule import PlannedChunk, periodic
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    run_recorded,
    still_errors,
)
from physis_lab.evaluation.fast_report import judged
from physis_lab.evaluation.lookahead import LookaheadCapped, LookaheadIgnored, LookaheadPerStep
from physis_lab.evaluation.policies import ActionPolicy, ExpertPolicy, ModelPolicy
from physis_lab.tasks.task import Task, make_task

COLOURS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00")
"""Colour-blind safe (Okabe and Ito), in the order of WAYS."""

WAYS = ("lookahead", "own times", "on arrival", "every step", "one lookahead")
REFRESHING = ("every step", "one lookahead")
EXPERT = "expert"
LATENCIES_MS = (0, 100, 200, 300, 400, 500, 600)


def refreshed(config: ClosedLoopConfig, steps: int) -> tuple[PlannedChunk, ...]:
    """A chunk every period whose `steps` denoising steps each take a fresh observation."""
    apart_s = config.response_s / steps
    newest_s = (steps - 1) * apart_s
    return tuple(
        replace(
            chunk,
            captures_s=tuple(chunk.captures_s[0] + d * apart_s for d in range(steps)),
            lookahead_s=max(0.0, config.lookahead_s - newest_s),
        )
        for chunk in periodic(
            duration_s=config.duration_s,
            period_s=config.period_s,
            lookahead_s=config.lookahead_s,
            handover_s=config.handover_s,
        )
    )


def study(
    checkpoint: Path,
    config: ClosedLoopConfig,
    latencies_ms: Sequence[int],
    ways: Sequence[str] = (*WAYS, EXPERT),
) -> list[dict[str, Any]]:
    """One row per latency: the figures of each of `ways`, and of an arm that does not move."""
    tasks: list[Task] = [
        make_task(config.task, config.first_seed + n) for n in range(config.episodes)
    ]
    shape = read_config(checkpoint, TinyConfig)
    world = build_model(props=tasks[0].props)
    kinematics = Kinematics(world)
    rule = tasks[0].rule
    rows = []
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        for latency_ms in latencies_ms:
            here = replace(config, response_s=latency_ms / 1e3)
            still = still_errors(tasks, here, kinematics)
            row: dict[str, Any] = {"response_ms": latency_ms, "age_ms": _ages_ms(here, shape.steps)}
            for way in ways:
                policy: ActionPolicy
                if way == EXPERT:
                    policy = ExpertPolicy(tasks, kinematics, shape.step_s)
                else:
                    model = ModelPolicy(checkpoint, camera, episodes=here.episodes)
                    policy = _wrapped(way, model, here, shape.lookahead_max_s, shape.steps)
                planned = refreshed(here, shape.steps) if way in REFRESHING else None
                errors = run_recorded(policy, tasks, here, planned=planned).errors
                row[way] = judged(rule, here, errors, still)[1]
                print(
                    f"{latency_ms} ms, {way}: {1e3 * row[way]['mean_m']:.1f} mm,"
                    f" success {row[way]['success']:.2f}",
                    file=sys.stderr,
                    flush=True,
                )
            row["still"] = judged(rule, here, still, still)[1]
            rows.append(row)
    return rows


def _wrapped(
    way: str, policy: ModelPolicy, config: ClosedLoopConfig, max_s: float, steps: int
) -> ActionPolicy:
    if way == "lookahead":
        return LookaheadCapped(policy, max_s)
    if way in REFRESHING:
        apart_s = config.response_s / steps if way == "every step" else 0.0
        return LookaheadPerStep(policy, max_s, steps=steps, apart_s=apart_s)
    return LookaheadIgnored(policy, by_time=way == "own times")


def _ages_ms(config: ClosedLoopConfig, steps: int) -> dict[str, float]:
    """Ages of a chunk's observations at its exit; the oldest is the same with one or D of them."""
    newest_s = config.lookahead_s - (steps - 1) * config.response_s / steps
    return {"oldest": 1e3 * config.lookahead_s, "newest_of_every_step": 1e3 * newest_s}


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Mean error and success over response latency, with 95% intervals over episodes."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    at_ms = np.array([row["response_ms"] for row in rows])
    for number, way in enumerate(WAYS):
        if way not in rows[0]:
            continue
        # Shifted sideways, so that markers do not hide each other.
        beside_ms = at_ms + 5.0 * (number - len(WAYS) // 2)
        success = np.array([row[way]["success"] for row in rows])
        low, high = np.array([row[way]["success_ci95"] for row in rows]).T
        look = {"marker": "o", "ms": 4, "capsize": 2, "lw": 1.2, "color": COLOURS[number]}
        axes[0].errorbar(
            beside_ms,
            [1e3 * row[way]["mean_m"] for row in rows],
            yerr=[1e3 * row[way]["mean_ci95_m"] for row in rows],
            label=way,
            **look,
        )
        # At 0 and 1 Wilson's bound equals the share; rounding may put it on the wrong side.
        apart = np.maximum(0.0, [success - low, high - success])
        axes[1].errorbar(beside_ms, success, yerr=apart, label=way, **look)
    still_mm = 1e3 * rows[0]["still"]["mean_m"]
    axes[0].axhline(still_mm, color="grey", linestyle=":", label="still")
    axes[0].set_ylabel("mean error [mm]")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(frameon=False)
    axes[1].set_ylabel("success")
    axes[1].set_ylim(-0.03, 1.03)
    for axis in axes:
        axis.set_xlabel("response latency [ms]")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Error over response latency.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--task", default="follow")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--duration", type=float, default=12.0, help="seconds each")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--latencies-ms", type=int, nargs="+", default=list(LATENCIES_MS))
    parser.add_argument("--ways", nargs="+", choices=(*WAYS, EXPERT), default=[*WAYS, EXPERT])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        for latency_ms in args.latencies_ms:
            if not 0 <= latency_ms <= 5000:
                raise UserError("latencies_ms", latency_ms, "must be from 0 to 5000")
        config = ClosedLoopConfig(
            task=args.task,
            episodes=args.episodes,
            duration_s=args.duration,
            first_seed=args.seed,
        )
        rows = study(args.checkpoint, config, args.latencies_ms, args.ways)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    names = (*args.ways, "still")
    print(f"{'ms':>5s}" + "".join(f"{name:>22s}" for name in names))
    for row in rows:
        cells = "".join(
            f"{1e3 * row[n]['mean_m']:10.1f} +-{1e3 * row[n]['mean_ci95_m']:4.1f}"
            f" {row[n]['success']:4.2f}"
            for n in names
        )
        print(f"{row['response_ms']:5d}{cells}   (mm, success)")
    if args.plot:
        draw(args.plot, rows)
    if args.json:
        write_result(args.json, {"config": asdict(config), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
