"""Write docs/images/tasks.png, the scenes of the tasks as their camera sees them:
`.venv/bin/python scripts/tasks_picture.py`. Above at the beginning, below when it is done.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import mujoco
import numpy as np

from physis_core.types import Array
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import build_model
from physis_lab.tasks.push_expert import HIGH_M, LOW_M, TOUCH_M
from physis_lab.tasks.task import Task, make_task

PAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "tasks.png"
SIZE = 320
LATER_S = 5.0
SHOWN = (
    ("follow", 4, "follow: stay 100 mm above the ball"),
    ("reach", 2, "reach: touch the ball and rest there"),
    ("push", 3, "push: the green disc onto the red mark"),
)


def done(task: Task, kinematics: Kinematics) -> tuple[Array, Array | None]:
    """Joints [6] rad and the object [3] m when the task is done."""
    goal = task.goal(LATER_S)
    if task.object_start is None:
        return kinematics.inverse(goal), None
    way = (goal - task.object_start)[:2]
    behind = goal[:2] - TOUCH_M * way / np.linalg.norm(way)
    return kinematics.inverse(np.array([*behind, 0.5 * (LOW_M + HIGH_M)])), goal


def pictures(task: Task) -> list[Array]:
    model = build_model(props=task.props)
    plant, kinematics = Plant(model), Kinematics(model)
    out = []
    with Camera(model, width=SIZE, height=SIZE) as camera:
        for at_s, (joints, lies) in (
            (0.0, (np.array(HOME_RAD), task.object_start)),
            (LATER_S, done(task, kinematics)),
        ):
            plant.reset(joints, lies)
            plant.place_target(task.target(at_s))
            mujoco.mj_forward(model, plant.data)
            out.append(camera.render(plant.data))
    return out


def main() -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, len(SHOWN), figsize=(9.6, 6.6))
    for column, (name, seed, title) in enumerate(SHOWN):
        for row, picture in enumerate(pictures(make_task(name, seed))):
            axes = grid[row][column]
            axes.imshow(picture)
            axes.set_xticks([])
            axes.set_yticks([])
        grid[0][column].set_title(title, fontsize=10)
    grid[0][0].set_ylabel("at the beginning")
    grid[1][0].set_ylabel("when it is done")
    figure.tight_layout()
    figure.savefig(PAGE, dpi=80)
    print(PAGE)


if __name__ == "__main__":
    main()
