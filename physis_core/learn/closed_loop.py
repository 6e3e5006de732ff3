"""Fast closed loop: arm, camera and policy in one process on simulated time, no engine and no ROS.

    python -m physis_core.learn.closed_loop --checkpoint checkpoints/physis_tiny_follow.safetensors

Chunk n is made from what camera and joints show at n * period. It enters after `observation_age_s`
and leaves `response_s` later, whatever the time that the computation takes here; then it replaces
the chunk before it within `blend_s`. Reported beside the model's error: that of the expert, who
knows the ball's true path but suffers the same delays, and that of an arm that stands still.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from physis_core.arm.camera import Camera
from physis_core.arm.expert import approach, ideal
from physis_core.arm.kinematics import HOME_RAD, Kinematics
from physis_core.arm.plant import Plant
from physis_core.arm.scene import build_model
from physis_core.arm.tasks import Task, make_task
from physis_core.learn.staged_batch import StagedBatch
from physis_core.model.image_input import resize_rgb
from physis_core.model.tiny.loading import load_tiny
from physis_core.observe.result_file import write_result
from physis_core.types import Array, UserError

RENDER_SIZE = 128
SERVO_STEP_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopConfig:
    """Episodes are tasks `first_seed`, `first_seed` + 1, ...; the first `settle_s` do not count."""

    task: str = "follow"
    episodes: int = 8
    first_seed: int = 100
    duration_s: float = 20.0
    settle_s: float = 2.0
    period_s: float = 0.1
    observation_age_s: float = 0.02
    response_s: float = 0.15
    blend_s: float = 0.1
    noise_seed: int = 0

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise UserError("episodes", self.episodes, "must be at least 1")
        if not 0 <= self.settle_s < self.duration_s:
            raise UserError("duration", self.duration_s, f"must be above {self.settle_s} s")
        for name in ("period_s", "observation_age_s", "response_s", "blend_s"):
            if getattr(self, name) < 0:
                raise UserError(name, getattr(self, name), "must not be negative")
        if not self.period_s >= SERVO_STEP_S:
            raise UserError("period_s", self.period_s, f"must be at least {SERVO_STEP_S}")

    @property
    def lookahead_s(self) -> float:
        return self.observation_age_s + self.response_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """`points` [K, J] rad, the first at `start_s`, one per `step_s`; in force from `exit_s` on."""

    exit_s: float
    start_s: float
    step_s: float
    points: Array

    def at(self, t_s: float) -> Array:
        """Linear between points, held before the first and after the last."""
        place = np.clip((t_s - self.start_s) / self.step_s, 0.0, len(self.points) - 1)
        low = min(int(place), len(self.points) - 2)
        share = place - low
        out: Array = (1.0 - share) * self.points[low] + share * self.points[low + 1]
        return out


class Policy(Protocol):
    """Makes the chunks of all episodes at one instant."""

    @property
    def step_s(self) -> float: ...

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        """[E, K, J] rad, point k at now_s + lookahead_s + k * step_s."""
        ...


class ModelPolicy:
    """Camera pixels and joint positions through a checkpoint, one stream per episode."""

    def __init__(self, checkpoint: Path, config: ClosedLoopConfig, camera: Camera) -> None:
        model = load_tiny({}, str(checkpoint), None, "cpu")
        self._config = model.config
        self._camera = camera
        self._streams = StagedBatch(model, rows=config.episodes, seed=config.noise_seed)

    @property
    def step_s(self) -> float:
        return self._config.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        size = self._config.image_size
        images = [resize_rgb(self._camera.render(plant.data), size) for plant in plants]
        joints = np.stack([plant.position for plant in plants]).astype(np.float32)
        outputs = self._streams.run_chunk(
            {
                "image": torch.from_numpy(np.stack(images)).unsqueeze(1),
                "joint_positions": torch.from_numpy(joints),
                "lookahead_s": torch.full((len(plants), 1), lookahead_s),
            }
        )
        return outputs["action"].numpy().astype(np.float64)


class ExpertPolicy:
    """Knows the ball's path, past and future, and the joints as they were at the capture."""

    def __init__(self, tasks: Sequence[Task], kinematics: Kinematics, step_s: float) -> None:
        self._tasks = tasks
        self._kinematics = kinematics
        self._step_s = step_s
        self._points = 8

    @property
    def step_s(self) -> float:
        return self._step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        wanted_s = lookahead_s + self._step_s * np.arange(self._points)
        fine_s = self._step_s * np.arange(int(np.ceil(wanted_s[-1] / self._step_s)) + 2)
        out = []
        for task, plant in zip(self._tasks, plants, strict=True):
            path = ideal(self._kinematics, task, now_s + fine_s)
            moves = approach(plant.position, path, self._step_s)
            out.append(
                np.stack([np.interp(wanted_s, fine_s, moves[:, j]) for j in range(6)], axis=1)
            )
        return np.stack(out)


def run(
    policy: Policy,
    tasks: Sequence[Task],
    config: ClosedLoopConfig,
    starts: Array | None = None,
) -> Array:
    """Distances [episodes, ticks] m of the end effector from its goal, one per servo tick.

    Args:
        starts: where each arm begins, [episodes, 6] rad; the home pose where not given.
    """
    model = build_model()
    plants = [Plant(model) for _ in tasks]
    command = np.tile(np.array(HOME_RAD), (len(tasks), 1)) if starts is None else starts.copy()
    for plant, task, start in zip(plants, tasks, command, strict=True):
        plant.reset(start)
        plant.place_target(task.target(0.0))
    substeps = round(SERVO_STEP_S / plants[0].step_s)
    ticks = round(config.duration_s / SERVO_STEP_S)
    every = round(config.period_s / SERVO_STEP_S)
    played: list[list[Chunk]] = [[] for _ in tasks]
    coming: list[list[Chunk]] = [[] for _ in tasks]
    errors = np.empty((len(tasks), ticks))
    for tick in range(ticks):
        now_s = tick * SERVO_STEP_S
        for plant, task in zip(plants, tasks, strict=True):
            plant.place_target(task.target(now_s))
        if tick % every == 0:
            points = policy.chunks(now_s, plants, config.lookahead_s)
            for row, chunk_points in enumerate(points):
                coming[row].append(
                    Chunk(
                        exit_s=now_s + config.lookahead_s,
                        start_s=now_s + config.lookahead_s,
                        step_s=policy.step_s,
                        points=chunk_points,
                    )
                )
        for row, plant in enumerate(plants):
            while coming[row] and coming[row][0].exit_s <= now_s + 1e-9:
                played[row] = [*played[row][-1:], coming[row].pop(0)]
            before = command[row].copy()
            command[row] = _blended(played[row], now_s + SERVO_STEP_S, config.blend_s, before)
            # The drive follows the straight line between two commands of the controller.
            speed = (command[row] - before) / SERVO_STEP_S
            for sub in range(1, substeps + 1):
                share = sub / substeps
                plant.step(before + share * (command[row] - before), speed)
            goal = tasks[row].goal(now_s + SERVO_STEP_S)
            errors[row, tick] = np.linalg.norm(plant.end_effector - goal)
    return errors


def _blended(played: Sequence[Chunk], t_s: float, blend_s: float, held: Array) -> Array:
    """The newest chunk's command, faded in from that of the chunk before (or from the held one)."""
    if not played:
        return held
    newest = played[-1].at(t_s)
    age_s = t_s - played[-1].exit_s
    if len(played) < 2 or age_s >= blend_s:
        return newest
    share = max(0.0, age_s / blend_s)
    return (1.0 - share) * played[-2].at(t_s) + share * newest


def still_errors(tasks: Sequence[Task], config: ClosedLoopConfig, kinematics: Kinematics) -> Array:
    """What `run` would give for an arm that never leaves its first pose."""
    here = kinematics.forward(np.array(HOME_RAD)).position
    at_s = SERVO_STEP_S * (1 + np.arange(round(config.duration_s / SERVO_STEP_S)))
    goals = np.stack([[task.goal(float(t)) for t in at_s] for task in tasks])
    out: Array = np.linalg.norm(goals - here, axis=-1)
    return out


def summary(errors: Array, settle_s: float) -> dict[str, float]:
    """Over all ticks after settling; `mean_ci95_m` is the half width over episodes' means."""
    counted = errors[:, round(settle_s / SERVO_STEP_S) :]
    means = counted.mean(axis=1)
    spread = means.std(ddof=1) / np.sqrt(len(means)) if len(means) > 1 else float("nan")
    return {
        "mean_m": float(counted.mean()),
        "mean_ci95_m": float(1.96 * spread),
        "median_m": float(np.median(counted)),
        "p95_m": float(np.quantile(counted, 0.95)),
        "worst_episode_m": float(means.max()),
    }


def evaluate(checkpoint: Path, config: ClosedLoopConfig) -> dict[str, Mapping[str, float]]:
    """Summaries of the model, of the expert under the same delays, and of standing still."""
    tasks = [make_task(config.task, config.first_seed + n) for n in range(config.episodes)]
    world = build_model()
    kinematics = Kinematics(world)
    with Camera(world, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        policy = ModelPolicy(checkpoint, config, camera)
        model_errors = run(policy, tasks, config)
    expert_errors = run(ExpertPolicy(tasks, kinematics, policy.step_s), tasks, config)
    still = still_errors(tasks, config, kinematics)
    return {
        "model": summary(model_errors, config.settle_s),
        "expert": summary(expert_errors, config.settle_s),
        "still": summary(still, config.settle_s),
    }


def main() -> int:
    defaults = ClosedLoopConfig()
    parser = argparse.ArgumentParser(description="Evaluate a checkpoint in the fast closed loop.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--task", default=defaults.task)
    parser.add_argument("--episodes", type=int, default=defaults.episodes)
    parser.add_argument("--duration", type=float, default=defaults.duration_s, help="seconds each")
    parser.add_argument("--period", type=float, default=defaults.period_s, help="chunk period, s")
    parser.add_argument(
        "--response", type=float, default=defaults.response_s, help="response latency, s"
    )
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        config = ClosedLoopConfig(
            task=args.task,
            episodes=args.episodes,
            duration_s=args.duration,
            period_s=args.period,
            response_s=args.response,
        )
        result = evaluate(args.checkpoint, config)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'':8s}{'mean':>9s}{'+-95%':>9s}{'median':>9s}{'p95':>9s}{'worst':>9s}   (m)")
    for name, values in result.items():
        print(f"{name:8s}" + "".join(f"{value:9.4f}" for value in values.values()))
    ratio = result["model"]["mean_m"] / result["still"]["mean_m"]
    print(f"model / still: {ratio:.3f}")
    if args.json:
        write_result(args.json, {"config": asdict(config), **result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
