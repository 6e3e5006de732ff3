"""Training episodes of the push task, simulated with contact because the arm moves the disc.

In every second episode disc and goal are placed anew every 4 to 10 s, so that pushes are completed;
in the others every 0.6 to 2 s, for many positions. In turns the arm follows the expert with a delay
and slowly varying errors, stands still, or moves to some other place. So the disc slips, and the
data contain the recovery.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_core.types import Array
from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import build_model
from physis_lab.tasks.demonstrations import EXPERT_POINTS, EXPERT_STEP_S, IDEAL_STEP_S, Motion
from physis_lab.tasks.push import DISC_HEIGHT_M, PUSH_PROPS, disc_and_goal
from physis_lab.tasks.push_expert import (
    TOOL_HIGH_M,
    TOOL_LOW_M,
    TOUCH_M,
    in_reach,
    push_moves,
    velocity,
)

SCENES_S = ((4.0, 10.0), (0.6, 2.0))
"""Time between placements, for even and for odd seeds."""

TURNS = ("expert", "expert", "expert", "expert", "still", "astray")


def push_motion(
    kinematics: Kinematics, seed: int, random: np.random.Generator, frame_s: Array
) -> Motion:
    """One episode. `seed` determines the placements, `random` the mistakes."""
    scenes = np.random.default_rng([seed, 0x70757368])
    scene_s = SCENES_S[seed % 2]
    arm = _Pusher(kinematics, random)
    frames = len(frame_s)
    every = max(1, round((frame_s[1] - frame_s[0]) / IDEAL_STEP_S))
    joints, objects, marks = np.empty((frames, 6)), np.empty((frames, 3)), np.empty((frames, 3))
    lasts = 0
    for i in range(frames):
        if i >= lasts:
            lasts = i + round(scenes.uniform(*scene_s) / (frame_s[1] - frame_s[0]))
            marks[i] = arm.set_anew(scenes)
        else:
            marks[i] = marks[i - 1]
        joints[i], objects[i] = arm.plant.position, arm.disc
        for _ in range(every):
            arm.advance(marks[i, :2])
    return Motion(
        joints=joints,
        marks=marks,
        objects=objects,
        expert=push_moves(
            kinematics, joints, objects, marks, points=EXPERT_POINTS, step_s=EXPERT_STEP_S
        ),
    )


@dataclass(slots=True)
class _Turn:
    """What the arm does for some time, and with which delay."""

    kind: str = "still"
    ticks: int = 0
    late: int = 0
    place: Array | None = None


class _Pusher:
    """An arm that pushes like the expert, with mistakes; `advance` moves it by IDEAL_STEP_S."""

    def __init__(self, kinematics: Kinematics, random: np.random.Generator) -> None:
        self.plant = Plant(build_model(props=PUSH_PROPS))
        self._kinematics, self._random = kinematics, random
        self._substeps = round(IDEAL_STEP_S / self.plant.step_s)
        self._turn = _Turn()
        self._error = np.zeros(3)
        # Half of the arms are nearly exact and show complete pushes.
        self._spread_m = random.uniform(0.0, 0.006 if random.random() < 0.5 else 0.025)
        self._seen: list[tuple[Array, Array]] = []
        start = in_reach(random.uniform((0.3, -0.25, 0.1), (0.6, 0.25, 0.31)))
        joints = kinematics.inverse(start) if random.random() < 0.7 else np.array(HOME_RAD)
        self.plant.reset(joints)
        self._command = joints
        self._wanted = kinematics.forward(joints).position

    @property
    def disc(self) -> Array:
        position = self.plant.object_position
        assert position is not None
        return position

    def set_anew(self, scenes: np.random.Generator) -> Array:
        """Place disc and goal anew, not under the tool; returns the mark's position [3] m."""
        while True:
            disc, goal = disc_and_goal(scenes)
            if np.linalg.norm(disc - self.plant.end_effector[:2]) > TOUCH_M + 0.02:
                break
        self.plant.place_object(np.array([*disc, DISC_HEIGHT_M / 2]))
        self._seen.clear()
        return np.array([*goal, 0.001])

    def advance(self, goal: Array) -> None:
        random = self._random
        self._seen = [*self._seen[-24:], (self.plant.end_effector, self.disc[:2])]
        if self._turn.ticks <= 0:
            self._turn = _Turn(
                kind=str(random.choice(TURNS)),
                ticks=int(random.uniform(0.8, 4.0) / IDEAL_STEP_S),
                late=int(random.uniform(0.0, 0.25) / IDEAL_STEP_S),
                place=random.uniform(TOOL_LOW_M, TOOL_HIGH_M),
            )
        self._turn.ticks -= 1
        memory = np.exp(-IDEAL_STEP_S / 0.5)
        fresh = random.normal(0.0, self._spread_m, 3) * (1.0, 1.0, 0.5)
        self._error = memory * self._error + np.sqrt(1.0 - memory**2) * fresh
        self._wanted = in_reach(self._wanted + IDEAL_STEP_S * self._speed(goal))
        place = in_reach(self._wanted + self._error)
        self._move(self._kinematics.inverse(place, self._command, tolerance_m=1e-4))

    def _speed(self, goal: Array) -> Array:
        turn = self._turn
        if turn.kind == "expert":
            tool, disc = self._seen[max(0, len(self._seen) - 1 - turn.late)]
            # Delayed observation, but exact knowledge of the commanded position.
            return velocity(np.where(turn.late > 0, self._wanted, tool), disc, goal)
        if turn.kind == "astray":
            assert turn.place is not None
            gap = turn.place - self._wanted
            # Rises first when it is low above the disc.
            if np.linalg.norm(self.disc[:2] - turn.place[:2]) < TOUCH_M + 0.02:
                gap = gap * (1.0, 1.0, 0.0) + (0.0, 0.0, 0.2 - self._wanted[2])
            far_m = float(np.linalg.norm(gap))
            out: Array = gap * min(0.25 / max(far_m, 1e-9), 3.0)
            return out
        return np.zeros(3)

    def _move(self, joints: Array) -> None:
        before, self._command = self._command, joints
        speed = (joints - before) / IDEAL_STEP_S
        for sub in range(1, self._substeps + 1):
            self.plant.step(before + sub / self._substeps * (joints - before), speed)
