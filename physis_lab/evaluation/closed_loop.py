"""Fast closed loop: arm, camera and policy in one process on simulated time, no engine and no ROS.

Chunk n is computed from the camera image and the joints at n * period. It enters after
`observation_age_s` and exits `response_s` later, however long the computation takes here. It then
replaces the chunk before it within `blend_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from physis_core.types import Array, UserError
from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.chunk_execution import ArrivedChunk, BlendExecutor, ChunkExecutor
from physis_lab.evaluation.chunk_schedule import PlannedChunk, captures_by_tick, periodic
from physis_lab.evaluation.intervals import mean_interval
from physis_lab.evaluation.policies import ActionPolicy, RefreshingPolicy
from physis_lab.tasks.task import Task

RENDER_SIZE = 128
SERVO_STEP_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopConfig:
    """Episodes are the tasks with seeds `first_seed`, `first_seed` + 1, ...; the first `settle_s`
    of each are left out."""

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
    policy: ActionPolicy,
    tasks: Sequence[Task],
    config: ClosedLoopConfig,
    starts: Array | None = None,
) -> Array:
    """Distance from the goal at each servo tick, [episodes, ticks] m.

    It is measured from the end effector, or from the object where the task has one. All tasks must
    be of one kind.

    Args:
        starts: first joint positions of each arm, [episodes, 6] rad; default: the home pose.
    """
    return run_recorded(policy, tasks, config, starts).errors


def run_recorded(
    policy: ActionPolicy,
    tasks: Sequence[Task],
    config: ClosedLoopConfig,
    starts: Array | None = None,
    *,
    planned: Sequence[PlannedChunk] | None = None,
    executor: Callable[[Array], ChunkExecutor] | None = None,
) -> LoopRecord:
    """Like `run`, and returns the commanded and measured joints as well.

    Args:
        planned: capture and arrival times of the chunks, the same for every episode; default: one
            chunk per period with the delays of `config`. A capture before the task begins sees the
            task's first moment.
        executor: makes a robot's chunk executor from its first joint positions [6] rad; default:
            chunks blend over `config.blend_s`.
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
    if executor is None:
        executors: list[ChunkExecutor] = [BlendExecutor(s, config.blend_s) for s in command]
    else:
        executors = [executor(start) for start in command]
    for plant, task, start in zip(plants, tasks, command, strict=True):
        plant.reset(start, task.object_start)
        plant.place_target(task.target(0.0))
    substeps = round(SERVO_STEP_S / plants[0].step_s)
    ticks = round(config.duration_s / SERVO_STEP_S)
    captures = captures_by_tick(planned, SERVO_STEP_S)
    coming: deque[tuple[PlannedChunk, Array]] = deque()
    record = LoopRecord(
        errors=np.empty((len(tasks), ticks)),
        commands=np.empty((len(tasks), ticks, 6)),
        positions=np.empty((len(tasks), ticks, 6)),
    )
    for tick in range(min(0, *captures) if captures else 0, ticks):
        now_s = tick * SERVO_STEP_S
        for plant, task in zip(plants, tasks, strict=True):
            plant.place_target(task.target(max(0.0, now_s)))
        for number, last in captures.get(tick, ()):
            if last:
                points = policy.chunks(now_s, plants, planned[number].lookahead_s)
                coming.append((planned[number], points))
            else:
                _refreshing(policy).observe(number, plants, planned[number].lookahead_s)
        while coming and coming[0][0].arrives_s <= now_s + 1e-9:
            chunk, points = coming.popleft()
            for one, chunk_points in zip(executors, points, strict=True):
                one.offer(_chunk(chunk, policy.step_s, chunk_points), now_s)
        for row, plant in enumerate(plants):
            before = command[row].copy()
            command[row] = executors[row].command(now_s + SERVO_STEP_S)
            # The drive follows the straight line between two commands of the controller.
            speed = (command[row] - before) / SERVO_STEP_S
            for sub in range(1, substeps + 1):
                share = sub / substeps
                plant.step(before + share * (command[row] - before), speed)
            if tick < 0:
                continue
            goal, pushed = tasks[row].goal(now_s + SERVO_STEP_S), plant.object_position
            moved = plant.end_effector if pushed is None else pushed
            record.errors[row, tick] = np.linalg.norm(moved - goal)
            record.commands[row, tick] = command[row]
            record.positions[row, tick] = plant.position
    return record


def _chunk(planned: PlannedChunk, step_s: float, points: Array) -> ArrivedChunk:
    return ArrivedChunk(
        exit_s=planned.arrives_s,
        start_s=planned.start_s,
        step_s=step_s,
        points=points,
        captured_s=planned.captures_s[0],
    )


def _refreshing(policy: ActionPolicy) -> RefreshingPolicy:
    if not isinstance(policy, RefreshingPolicy):
        raise TypeError(f"{type(policy).__name__} takes one observation for each chunk")
    return policy


def still_errors(tasks: Sequence[Task], config: ClosedLoopConfig, kinematics: Kinematics) -> Array:
    """The distances that `run` would return for an arm that never moves."""
    here = kinematics.forward(np.array(HOME_RAD)).position
    starts = [here if task.object_start is None else task.object_start for task in tasks]
    at_s = tick_times(config)
    goals = np.stack([[task.goal(float(t)) for t in at_s] for task in tasks])
    out: Array = np.linalg.norm(goals - np.stack(starts)[:, None], axis=-1)
    return out


def tick_times(config: ClosedLoopConfig) -> Array:
    """Times of a record's ticks, [ticks] s on the task's clock."""
    return SERVO_STEP_S * (1.0 + np.arange(round(config.duration_s / SERVO_STEP_S)))


def summary(errors: Array, settle_s: float) -> dict[str, float]:
    """Statistics of the ticks after settling; `mean_ci95_m` is a half width over episode means."""
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
