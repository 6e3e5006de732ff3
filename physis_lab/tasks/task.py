"""Tasks by name and seed. Everything is a pure function of (seed, t).

    task = make_task("reach", seed=7)
    task.target(t_s), task.goal(t_s)              [3] m each
    outcome = judge_episode(task, t_s, moved)     success, error_m, time_s

`moved` [n, 3] m is the recorded path of the end effector, or of the object if `task.object_start`
is not None.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from physis_core.types import Array, UserError
from physis_lab.arm.scene import Props
from physis_lab.tasks import TASKS
from physis_lab.tasks.ball import JUMP_PERIOD_S, Follow, Reach
from physis_lab.tasks.outcome import Outcome, Rule
from physis_lab.tasks.push import Push


class Task(Protocol):
    """One seeded task: its scene, its goal over time, and its success rule."""

    @property
    def name(self) -> str: ...

    @property
    def duration_s(self) -> float:
        """Duration of an episode."""
        ...

    @property
    def props(self) -> Props:
        """Objects in the scene; equal for all seeds of a task."""
        ...

    @property
    def rule(self) -> Rule:
        """The success rule."""
        ...

    @property
    def object_start(self) -> Array | None:
        """First position of the object's centre [3] m; None if the task has no object."""
        ...

    def target(self, t_s: float) -> Array:
        """Position of the mark (the ball, or the goal on the floor) [3] m at task time `t_s`."""
        ...

    def goal(self, t_s: float) -> Array:
        """Goal of the end effector, or of the object if there is one, [3] m at `t_s`."""
        ...


def make_task(name: str, seed: int) -> Task:
    """The task `name`, seeded.

    Raises:
        UserError: no such task.
    """
    if name == "follow":
        return Follow(seed=seed)
    if name == "follow_jumps":
        return Follow(seed=seed, jump_period_s=JUMP_PERIOD_S)
    if name == "reach":
        return Reach(seed=seed)
    if name == "push":
        return Push(seed=seed)
    raise UserError("task", name, f"one of {', '.join(TASKS)}")


def judge_episode(task: Task, t_s: Array, moved: Array) -> Outcome:
    """Judge one recorded episode.

    Args:
        t_s: [n] s since the task began, increasing.
        moved: [n, 3] m at these times, the end effector or (`object_start`) the object's centre;
            its first row is the position before anything moved.

    Raises:
        ValueError: the record is too short to be judged.
    """
    goals = np.stack([task.goal(float(t)) for t in t_s]) if len(t_s) else np.empty((0, 3))
    return task.rule.judge(
        t_s, np.linalg.norm(moved - goals, axis=1), np.linalg.norm(moved[:1] - goals, axis=1)
    )
