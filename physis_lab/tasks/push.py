"""The push task: a disc on the floor, moved by real contact onto a mark. Pure in (seed, t)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from physis_core.types import Array
from physis_lab.arm.scene import (
    FLOOR_GEOM,
    OBJECT_BODY,
    SHADOW_BODY,
    TARGET_BODY,
    TOOL_GEOM,
    Props,
)
from physis_lab.tasks.outcome import Arrives, Rule

DISC_RADIUS_M = 0.06
DISC_HEIGHT_M = 0.08
MARK_RADIUS_M = 0.08

PUSH_LOW_M: tuple[float, float] = (0.36, -0.24)
PUSH_HIGH_M: tuple[float, float] = (0.58, 0.24)
"""Rectangle of the floor for disc and goal: visible, with room for the tool on every side."""

START_X_M = (0.36, 0.46)
WAY_M = (0.10, 0.20)
"""Straight distance from start to goal."""

WAY_RAD = (-1.75, 1.75)
"""Direction from the x axis. Not towards the base, where the wrist would hide the disc."""

PUSH_PROPS = Props(
    # With an elliptic cone the disc slides along the push in every direction.
    cone="elliptic",
    mark=f'''<geom name="{TARGET_BODY}" type="cylinder" size="{MARK_RADIUS_M} 0.001"
            rgba="0.92 0.05 0.05 1" contype="0" conaffinity="0"/>''',
    # No floating object, so no shadow.
    shadow=f'''<geom name="{SHADOW_BODY}" type="cylinder" size="0.01 0.0001" rgba="0 0 0 0"
            contype="0" conaffinity="0"/>''',
    bodies=f'''<body name="{OBJECT_BODY}" pos="0.45 0 {DISC_HEIGHT_M / 2}"><freejoint/>
      <geom name="{OBJECT_BODY}" type="cylinder" size="{DISC_RADIUS_M} {DISC_HEIGHT_M / 2}"
            mass="0.3" rgba="0.05 0.62 0.20 1" contype="0" conaffinity="0"/>
    </body>''',
    contacts=f'''
    <pair geom1="{FLOOR_GEOM}" geom2="{OBJECT_BODY}" friction="0.4 0.4 0.005 0.0001 0.0001"/>
    <pair geom1="{TOOL_GEOM}" geom2="{OBJECT_BODY}" friction="0.05 0.05 0.005 0.0001 0.0001"/>
    <pair geom1="wrist_2" geom2="{OBJECT_BODY}" friction="0.05 0.05 0.005 0.0001 0.0001"/>
    <pair geom1="{FLOOR_GEOM}" geom2="{TOOL_GEOM}" friction="0.2 0.2 0.005 0.0001 0.0001"/>''',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """Push a green disc of 120 mm onto a red mark on the floor, 100 to 200 mm away.

    Success: by 20 s the disc's centre is within 40 mm of the mark's and stays there.
    """

    seed: int

    @property
    def name(self) -> str:
        return "push"

    @property
    def duration_s(self) -> float:
        return 20.0

    @property
    def props(self) -> Props:
        return PUSH_PROPS

    @property
    def rule(self) -> Rule:
        return Arrives(tolerance_m=0.04, within_s=self.duration_s, to_the_end=True)

    @property
    def object_start(self) -> Array:
        return np.array([*_places(self.seed)[0], DISC_HEIGHT_M / 2])

    def target(self, t_s: float) -> Array:
        return np.array([*_places(self.seed)[1], 0.001])

    def goal(self, t_s: float) -> Array:
        return np.array([*_places(self.seed)[1], DISC_HEIGHT_M / 2])


def disc_and_goal(random: np.random.Generator) -> tuple[Array, Array]:
    """A start and a goal on the floor, [2] m each."""
    while True:
        start = random.uniform((START_X_M[0], PUSH_LOW_M[1]), (START_X_M[1], PUSH_HIGH_M[1]))
        angle, way = random.uniform(*WAY_RAD), random.uniform(*WAY_M)
        goal = start + way * np.array([math.cos(angle), math.sin(angle)])
        if np.all(goal >= PUSH_LOW_M) and np.all(goal <= PUSH_HIGH_M):
            return start, goal


@lru_cache(maxsize=4096)
def _places(seed: int) -> tuple[Array, Array]:
    return disc_and_goal(np.random.default_rng([seed & 0xFFFFFFFF, 0x70757368]))
