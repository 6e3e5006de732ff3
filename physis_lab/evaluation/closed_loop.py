"""Fast closed loop: arm, camera and policy in one process on simulated time, no engine and no ROS.

    python -m physis_lab.evaluation.closed_loop --checkpoint
    checkpoints/physis_tiny_follow.safetensors

Chunk n is made from what camera and joints show at n * period. It enters after `observation_age_s`
and leaves `response_s` later, whatever the time that the computation takes here; then it replaces
the chunk before it within `blend_s`. Reported beside the model's error: that of the expert, who
knows the true state and the ball's path ahead of time but suffers the same delays, and that of an
arm that stands still.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from physis_core.model.image_input import resize_rgb
from physis_core.model.tiny.loading import load_actions
from physis_core.model.tiny.model import TinyModel
from physis_core.types import Array, UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.chunk_execution import BlendPlayer, Chunk, Player
from physis_lab.evaluation.chunk_schedule import PlannedChunk, looks_by_tick, periodic
from physis_lab.evaluation.intervals import mean_interval
from physis_lab.tasks.expert import approach, ideal
from physis_lab.tasks.push_expert import push_moves
from physis_lab.tasks.task import Task
from physis_lab.training.staged_batch import StagedBatch

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
    handover_s: float = 0.0
    """From exit to the buffer."""
    blend_s: float = 0.1
    noise_seed: int = 0

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise UserError("episodes", self.episodes, "must be at least 1")
        if not 0 <= self.settle_s < self.duration_s:
            raise UserError("duration", self.duration_s, f"must be above {self.settle_s} s")
        for name in ("period_s", "observation_age_s", "response_s", "handover_s", "blend_s"):
            if getattr(self, name) < 0:
                raise UserError(name, getattr(self, name), "must not be negative")
        if not self.period_s >= SERVO_STEP_S:
            raise UserError("period_s", self.period_s, f"must be at least {SERVO_STEP_S}")

    @property
    def lookahead_s(self) -> float:
        return self.observation_age_s + self.response_s


class Policy(Protocol):
    """Makes the chunks of all episodes at one instant."""

    @property
    def step_s(self) -> float: ...

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        """[E, K, J] rad, point k at now_s + lookahead_s + k * step_s."""
        ...


@runtime_checkable
class RefreshingPolicy(Policy, Protocol):
    """A policy whose chunks may take a newer observation at each later denoising step."""

    def look(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        """What chunk number `chunk` sees now; its last look is the call of `chunks`."""
        ...


class ModelPolicy:
    """Camera pixels and joint positions through a checkpoint, one stream per episode."""

    def __init__(
        self, checkpoint: Path | TinyModel, config: ClosedLoopConfig, camera: Camera
    ) -> None:
        model = checkpoint if isinstance(checkpoint, TinyModel) else load_actions(checkpoint)
        self._config = model.config
        self._camera = camera
        self._streams = StagedBatch(model, rows=config.episodes, seed=config.noise_seed)
        self._next = 0
        self._looks: dict[int, list[dict[str, torch.Tensor]]] = {}

    @property
    def step_s(self) -> float:
        return self._config.step_s

    def look(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        self._looks.setdefault(chunk, []).append(self._seen(plants, lookahead_s))

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        looks = [*self._looks.pop(self._next, []), self._seen(plants, lookahead_s)]
        self._next += 1
        outputs = self._streams.run_chunk(looks[0], dict(enumerate(looks[1:], start=1)))
        return outputs["action"].numpy().astype(np.float64)

    def _seen(self, plants: Sequence[Plant], lookahead_s: float) -> dict[str, torch.Tensor]:
        size = self._config.image_size
        images = [resize_rgb(self._camera.render(plant.data), size) for plant in plants]
        joints = np.stack([plant.position for plant in plants]).astype(np.float32)
        return {
            "image": torch.from_numpy(np.stack(images)).unsqueeze(1),
            "joint_positions": torch.from_numpy(joints),
            "lookahead_s": torch.full((len(plants), 1), lookahead_s),
        }


class ExpertPolicy:
    """Knows the ball's path, past and future, and joints and object as they were at the capture."""

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
        for moves in self._moves(now_s, plants, fine_s):
            out.append(
                np.stack([np.interp(wanted_s, fine_s, moves[:, j]) for j in range(6)], axis=1)
            )
        return np.stack(out)

    def _moves(self, now_s: float, plants: Sequence[Plant], fine_s: Array) -> Array:
        """[E, len(fine_s), 6] rad from the state of each robot on."""
        joints = np.stack([plant.position for plant in plants])
        objects = [plant.object_position for plant in plants]
        known = [lies for lies in objects if lies is not None]
        if known:
            marks = np.stack([task.goal(now_s) for task in self._tasks])
            return push_moves(
                self._kinematics,
                joints,
                np.stack(known),
                marks,
                points=len(fine_s),
                step_s=self._step_s,
            )
        paths = [ideal(self._kinematics, task, now_s + fine_s) for task in self._tasks]
        return approach(joints, np.stack(paths), self._step_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopRecord:
    """One row per servo tick, at (n + 1) * SERVO_STEP_S of the task's clock."""

    errors: Array
    """[episodes, ticks] m, end effector (or the task's object) to goal."""
    commands: Array
    """[episodes, ticks, 6] rad."""
    positions: Array
    """[episodes, ticks, 6] rad, measured."""


def run(
    policy: Policy,
    tasks: Sequence[Task],
    config: ClosedLoopConfig,
    starts: Array | None = None,
) -> Array:
    """Distances [episodes, ticks] m from the goal, one per servo tick: of the end effector, or of
    the object of a task with one. All tasks are of one kind.

    Args:
        starts: where each arm begins, [episodes, 6] rad; the home pose where not given.
    """
    return run_recorded(policy, tasks, config, starts).errors


def run_recorded(
    policy: Policy,
    tasks: Sequence[Task],
    config: ClosedLoopConfig,
    starts: Array | None = None,
    *,
    planned: Sequence[PlannedChunk] | None = None,
    player: Callable[[Array], Player] | None = None,
) -> LoopRecord:
    """As `run`, with what was commanded and measured.

    Args:
        planned: when chunks are captured and arrive, the same for every episode; where not given,
            periodically with the delays of `config`. Captures before the task's beginning see its
            first moment.
        player: makes what plays a robot's chunks from its first joint positions [6] rad; where not
            given, chunks blend over `config.blend_s`.
    """
    if planned is None:
        planned = periodic(
            duration_s=config.duration_s,
            period_s=config.period_s,
            lookahead_s=config.lookahead_s,
            handover_s=config.handover_s,
        )
    model = build_model(props=tasks[0].props)
    plants = [Plant(model) for _ in tasks]
    command = np.tile(np.array(HOME_RAD), (len(tasks), 1)) if starts is None else starts.copy()
    players = [
        BlendPlayer(start, config.blend_s) if player is None else player(start) for start in command
    ]
    for plant, task, start in zip(plants, tasks, command, strict=True):
        plant.reset(start, task.object_start)
        plant.place_target(task.target(0.0))
    substeps = round(SERVO_STEP_S / plants[0].step_s)
    ticks = round(config.duration_s / SERVO_STEP_S)
    looks = looks_by_tick(planned, SERVO_STEP_S)
    coming: deque[tuple[PlannedChunk, Array]] = deque()
    record = LoopRecord(
        errors=np.empty((len(tasks), ticks)),
        commands=np.empty((len(tasks), ticks, 6)),
        positions=np.empty((len(tasks), ticks, 6)),
    )
    for tick in range(min(0, *looks) if looks else 0, ticks):
        now_s = tick * SERVO_STEP_S
        for plant, task in zip(plants, tasks, strict=True):
            plant.place_target(task.target(max(0.0, now_s)))
        for number, last in looks.get(tick, ()):
            if last:
                points = policy.chunks(now_s, plants, planned[number].told_s)
                coming.append((planned[number], points))
            else:
                _refreshing(policy).look(number, plants, planned[number].told_s)
        while coming and coming[0][0].arrives_s <= now_s + 1e-9:
            chunk, points = coming.popleft()
            for playing, chunk_points in zip(players, points, strict=True):
                playing.offer(_chunk(chunk, policy.step_s, chunk_points), now_s)
        for row, plant in enumerate(plants):
            before = command[row].copy()
            command[row] = players[row].command(now_s + SERVO_STEP_S)
            # The drive follows the straight line between two commands of the controller.
            speed = (command[row] - before) / SERVO_STEP_S
            for sub in range(1, substeps + 1):
                share = sub / substeps
                plant.step(before + share * (command[row] - before), speed)
            if tick < 0:
                continue
            goal, lies = tasks[row].goal(now_s + SERVO_STEP_S), plant.object_position
            moved = plant.end_effector if lies is None else lies
            record.errors[row, tick] = np.linalg.norm(moved - goal)
            record.commands[row, tick] = command[row]
            record.positions[row, tick] = plant.position
    return record


def _chunk(planned: PlannedChunk, step_s: float, points: Array) -> Chunk:
    return Chunk(
        exit_s=planned.arrives_s,
        start_s=planned.start_s,
        step_s=step_s,
        points=points,
        captured_s=planned.captures_s[0],
    )


def _refreshing(policy: Policy) -> RefreshingPolicy:
    if not isinstance(policy, RefreshingPolicy):
        raise TypeError(f"{type(policy).__name__} takes one observation for each chunk")
    return policy


def still_errors(tasks: Sequence[Task], config: ClosedLoopConfig, kinematics: Kinematics) -> Array:
    """What `run` would give for an arm that never leaves its first pose."""
    here = kinematics.forward(np.array(HOME_RAD)).position
    starts = [here if task.object_start is None else task.object_start for task in tasks]
    at_s = tick_times(config)
    goals = np.stack([[task.goal(float(t)) for t in at_s] for task in tasks])
    out: Array = np.linalg.norm(goals - np.stack(starts)[:, None], axis=-1)
    return out


def tick_times(config: ClosedLoopConfig) -> Array:
    """When the ticks of a record are, [ticks] s on the task's clock."""
    return SERVO_STEP_S * (1.0 + np.arange(round(config.duration_s / SERVO_STEP_S)))


def summary(errors: Array, settle_s: float) -> dict[str, float]:
    """Over all ticks after settling; `mean_ci95_m` is the half width over episodes' means."""
    counted = errors[:, round(settle_s / SERVO_STEP_S) :]
    means = counted.mean(axis=1)
    mean_m, half_m = mean_interval(means)
    return {
        "mean_m": mean_m,
        "mean_ci95_m": half_m,
        "median_m": float(np.median(counted)),
        "p95_m": float(np.quantile(counted, 0.95)),
        "worst_episode_m": float(means.max()),
    }


if __name__ == "__main__":
    # The command judges by `evaluation`, which runs this loop.
    from physis_lab.evaluation.closed_loop_command import main

    sys.exit(main())
