"""The simulated robot without ROS: plant, controller, task and limit checks, tick by tick.

Threads: `offer` may be called from any thread; everything else only from the thread of `tick`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from physis_core.observe.rowlog import RowLog
from physis_core.types import Array, UserError
from physis_lab.arm.judge import MotionJudge, Passed
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.arm.plant import Plant
from physis_lab.tasks.task import Task
from physis_ros.robot.point_interpolation import MotionState
from physis_ros.robot.trajectory_controller import (
    ControllerConfig,
    Trajectory,
    TrajectoryController,
)

_JOINTS = len(JOINT_NAMES)

RECORD_COLUMNS: Mapping[str, str] = {
    "t_s": "s",
    "task_t_s": "s",
    **{f"q{j}": "rad" for j in range(_JOINTS)},
    **{f"qd{j}": "rad/s" for j in range(_JOINTS)},
    **{f"cmd{j}": "rad" for j in range(_JOINTS)},
    **{f"cmdd{j}": "rad/s" for j in range(_JOINTS)},
    **{f"target_{axis}": "m" for axis in "xyz"},
    **{f"ee_{axis}": "m" for axis in "xyz"},
    "error_m": "m",
    "still_error_m": "m",
    "limit": "bit mask of physis_lab.arm.judge.Passed",
    "holding": "1 if the controller had no future point",
    "accepted": "trajectories accepted so far",
    "refused": "trajectories refused so far",
}
"""One row per tick. `t_s` is the host's steady clock. `error_m` is the distance of the end
effector, or of the task's object, to its goal; `still_error_m` is that distance if the arm had not
moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotTick:
    """The robot's true state at one tick; `at_s` is steady time, arrays are [6] or [3]."""

    at_s: float
    task_s: float
    position: Array
    velocity: Array
    target: Array
    end_effector: Array
    error_m: float
    still_error_m: float
    passed: Passed
    holding: bool


class SimulatedRobot:
    """Runs on a grid of ticks from `start_s`, `tick_s` apart; the caller calls `tick`.

    With `task_waits` task time starts with the first accepted trajectory, so that it does not
    depend on the engine's load time; otherwise at `start_s`.

    Raises:
        UserError: a tick is not a whole number of simulation steps, or the record cannot be
        written.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        task: Task,
        *,
        controller: ControllerConfig,
        start_s: float,
        tick_s: float,
        task_waits: bool = True,
        record: Path | None = None,
    ) -> None:
        self.plant = Plant(model)
        self.tick_s = tick_s
        self.accepted = 0
        self.refused = 0
        self.last_refusal = ""
        self.limit_ticks = 0
        self._task = task
        self._steps = round(tick_s / self.plant.step_s)
        if self._steps < 1 or abs(self._steps * self.plant.step_s - tick_s) > 1e-9:
            raise UserError(
                "controller_hz",
                1.0 / tick_s,
                f"its period is not a multiple of {self.plant.step_s} s",
            )
        self.plant.reset(np.array(HOME_RAD), task.object_start)
        self._first_place = self._moved
        self._begun_s = start_s
        self._task_begun_s = None if task_waits else start_s
        self._next_s = start_s
        self._controller = TrajectoryController(controller, self._measured())
        self._judge = MotionJudge(self.plant.limits, tick_s)
        self._offered: deque[tuple[float, Trajectory]] = deque()
        self._served: Array = np.array(HOME_RAD)
        self._served_velocity: Array = np.zeros(_JOINTS)
        self._log: RowLog | None = None
        if record is not None:
            self._log = RowLog(
                record,
                RECORD_COLUMNS,
                meta={"task": task.name, "tick_s": tick_s, "joint_names": list(JOINT_NAMES)},
            )

    @property
    def next_s(self) -> float:
        """When the next tick is due."""
        return self._next_s

    def offer(self, trajectory: Trajectory, arrival_s: float) -> None:
        """A trajectory that arrived at `arrival_s`; it takes effect at the next tick."""
        self._offered.append((arrival_s, trajectory))

    def skip_to(self, now_s: float) -> None:
        """Skip the ticks up to `now_s`, which the host was too slow for."""
        missed = max(0, int((now_s - self._next_s) / self.tick_s))
        self._next_s += missed * self.tick_s
        self._judge.forget()

    def tick(self) -> RobotTick:
        """One period of the controller: move up to now, take offers, command, judge, record."""
        now_s = self._next_s
        if now_s > self._begun_s:
            self._move()
        self._take_offers(now_s)
        task_s = 0.0 if self._task_begun_s is None else now_s - self._task_begun_s
        self.plant.place_target(self._task.target(task_s))
        answer = self._controller.update(now_s, self._measured())
        command = answer.state
        velocity = np.zeros(_JOINTS) if command.velocity is None else command.velocity
        passed = self._judge.look(command.position, self.plant.position, self.plant.velocity)
        if np.isfinite(command.position).all() and np.isfinite(velocity).all():
            self._served, self._served_velocity = command.position, velocity
        else:
            # A drive rejects such a command and holds the last one.
            self._served_velocity = np.zeros(_JOINTS)
        self._next_s = now_s + self.tick_s
        return self._finish(now_s, task_s, command.position, velocity, passed, answer.holding)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _move(self) -> None:
        """Advance the plant by one tick under the last command."""
        for step in range(self._steps):
            ahead_s = step * self.plant.step_s
            self.plant.step(self._served + ahead_s * self._served_velocity, self._served_velocity)

    def _take_offers(self, now_s: float) -> None:
        while self._offered and self._offered[0][0] <= now_s:
            _, trajectory = self._offered.popleft()
            reason = self._controller.accept(trajectory, now_s)
            if reason is None:
                self.accepted += 1
                if self._task_begun_s is None:
                    self._task_begun_s = now_s
            else:
                self.refused += 1
                self.last_refusal = reason

    def _finish(
        self,
        now_s: float,
        task_s: float,
        command: Array,
        command_velocity: Array,
        passed: Passed,
        holding: bool,
    ) -> RobotTick:
        plant, goal, target = self.plant, self._task.goal(task_s), self._task.target(task_s)
        end_effector, moved = plant.end_effector, self._moved
        tick = RobotTick(
            at_s=now_s,
            task_s=task_s,
            position=plant.position,
            velocity=plant.velocity,
            target=target,
            end_effector=end_effector,
            error_m=float(np.linalg.norm(moved - goal)),
            still_error_m=float(np.linalg.norm(self._first_place - goal)),
            passed=passed,
            holding=holding,
        )
        self.limit_ticks += passed != Passed.NONE
        if self._log is not None:
            self._log.append(
                tick.at_s,
                tick.task_s,
                *tick.position,
                *tick.velocity,
                *command,
                *command_velocity,
                *target,
                *end_effector,
                tick.error_m,
                tick.still_error_m,
                int(passed),
                holding,
                self.accepted,
                self.refused,
            )
        return tick

    @property
    def _moved(self) -> Array:
        """Position [3] m of the object, or of the end effector in a task without one."""
        pushed = self.plant.object_position
        return self.plant.end_effector if pushed is None else pushed

    def _measured(self) -> MotionState:
        # Like those of the real arm, the drives report no acceleration.
        return MotionState(position=self.plant.position, velocity=self.plant.velocity)
