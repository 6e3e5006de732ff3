"""What response latency costs, and what telling the model of it gives back: study (b).

    python -m physis_core.learn.latency_study \\
        --checkpoint checkpoints/physis_tiny_follow.safetensors --plot docs/images/latency.png

The fast closed loop at several response latencies, with the same episodes and noise, in three ways:

    told         the model is conditioned on capture-to-exit (the lookahead); its points begin there
    own times    it is told 0: points begin at the capture; those that have passed are trimmed, as
                 the buffer does, and past the last one the arm holds
    on arrival   it is told 0 and its first point is played when the chunk arrives, however old it
                 is: what a client without stamps does

The checkpoint was trained for lookaheads up to its `lookahead_max_s`; longer ones are told as that.
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

from physis_core.arm.camera import Camera
from physis_core.arm.kinematics import Kinematics
from physis_core.arm.plant import Plant
from physis_core.arm.scene import build_model
from physis_core.arm.tasks import Task, make_task
from physis_core.learn.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    ExpertPolicy,
    ModelPolicy,
    Policy,
    run,
    still_errors,
    summary,
)
from physis_core.model.tiny import checkpoint as checkpoints
from physis_core.observe.result_file import write_result
from physis_core.types import Array, UserError

WAYS = ("told", "own times", "on arrival")
LATENCIES_MS = (0, 100, 200, 300, 400, 500, 600)


class NotTold:
    """A policy that believes its chunks to be in force at once.

    `by_time`: point k is played at capture + k * step, held past the last; else at arrival + k *
    step.
    """

    def __init__(self, policy: Policy, *, by_time: bool) -> None:
        self._policy = policy
        self._by_time = by_time

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        points = self._policy.chunks(now_s, plants, 0.0)
        return later(points, lookahead_s / self.step_s) if self._by_time else points


def later(points: Array, steps: float) -> Array:
    """The path of points [E, K, J] seen from `steps` points on, held past the last: [E, K, J]."""
    count = points.shape[1]
    place = np.clip(np.arange(count) + steps, 0.0, count - 1)
    low = np.minimum(place.astype(int), max(count - 2, 0))
    share = (place - low)[None, :, None]
    high = np.minimum(low + 1, count - 1)
    out: Array = (1.0 - share) * points[:, low] + share * points[:, high]
    return out


class Told:
    """A policy that is told the lookahead, up to what it was trained for."""

    def __init__(self, policy: Policy, max_s: float) -> None:
        self._policy = policy
        self._max_s = max_s

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        told_s = min(lookahead_s, self._max_s)
        points = self._policy.chunks(now_s, plants, told_s)
        return later(points, (lookahead_s - told_s) / self.step_s)


def study(
    checkpoint: Path, config: ClosedLoopConfig, latencies_ms: Sequence[int]
) -> list[dict[str, Any]]:
    """One row per latency: summaries of the three ways, the expert, and standing still."""
    tasks: list[Task] = [
        make_task(config.task, config.first_seed + n) for n in range(config.episodes)
    ]
    trained_s = checkpoints.read_config(checkpoint).lookahead_max_s
    world = build_model()
    kinematics = Kinematics(world)
    rows = []
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        for latency_ms in latencies_ms:
            here = replace(config, response_s=latency_ms / 1e3)
            row: dict[str, Any] = {"response_ms": latency_ms}
            for way in WAYS:
                policy = ModelPolicy(checkpoint, here, camera)
                shown: Policy
                if way == "told":
                    shown = Told(policy, trained_s)
                else:
                    shown = NotTold(policy, by_time=way == "own times")
                row[way] = summary(run(shown, tasks, here), here.settle_s)
                print(
                    f"{latency_ms} ms, {way}: {1e3 * row[way]['mean_m']:.1f} mm",
                    file=sys.stderr,
                    flush=True,
                )
            expert = ExpertPolicy(tasks, kinematics, policy.step_s)
            row["expert"] = summary(run(expert, tasks, here), here.settle_s)
            row["still"] = summary(still_errors(tasks, here, kinematics), here.settle_s)
            rows.append(row)
    return rows


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Mean error over response latency, with 95% intervals over episodes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    at_ms = [row["response_ms"] for row in rows]
    for way in WAYS:
        axes.errorbar(
            at_ms,
            [1e3 * row[way]["mean_m"] for row in rows],
            yerr=[1e3 * row[way]["mean_ci95_m"] for row in rows],
            marker="o",
            capsize=3,
            label=way,
        )
    axes.axhline(1e3 * rows[0]["still"]["mean_m"], color="grey", linestyle=":", label="still")
    axes.set_xlabel("response latency [ms]")
    axes.set_ylabel("mean error [mm]")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description="Error over response latency.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--task", default="follow")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--duration", type=float, default=12.0, help="seconds each")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--latencies-ms", type=int, nargs="+", default=list(LATENCIES_MS))
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
        rows = study(args.checkpoint, config, args.latencies_ms)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'ms':>5s}" + "".join(f"{name:>20s}" for name in (*WAYS, "expert", "still")))
    for row in rows:
        cells = "".join(
            f"{1e3 * row[n]['mean_m']:12.1f} +-{1e3 * row[n]['mean_ci95_m']:4.1f}"
            for n in (*WAYS, "expert", "still")
        )
        print(f"{row['response_ms']:5d}{cells}   (mm)")
    if args.plot:
        draw(args.plot, rows)
    if args.json:
        write_result(args.json, {"config": asdict(config), "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
