"""Which demonstrations each task has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from physis_core.types import Array
from physis_lab.arm.kinematics import Kinematics
from physis_lab.tasks.demonstrations import Motion, follow_motion, reach_motion
from physis_lab.tasks.push_demonstrations import push_motion
from physis_lab.tasks.task import JUMP_PERIOD_S

Demonstrator = Callable[[Kinematics, int, np.random.Generator, Array], Motion]
"""(kinematics, seed of the task, generator, times of the frames [T] s) -> what happens."""

DEMONSTRATORS: Mapping[str, Demonstrator] = {
    "follow": follow_motion,
    "follow_jumps": partial(follow_motion, jump_period_s=JUMP_PERIOD_S),
    "reach": reach_motion,
    "push": push_motion,
}
