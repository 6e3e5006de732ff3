"""Training episodes of the scripted expert, with the mistakes and delays that a policy will meet.

    python -m physis_core.arm.episodes --out DIR --episodes 100 --seed 1

writes `DIR/episode_00000.safetensors` and so on, each complete or absent, and goes on where it
stopped. One file holds, for T frames at `rate_hz` (time 0 = first frame):

    images            uint8   [T, 64, 64, 3]  rendered 128 x 128, then `resize_rgb`
    joint_positions   float32 [T, 6]          rad, at the same instants as the images
    target_positions  float32 [T, 3]          m, the ball
    end_effector      float32 [T, 3]          m
    expert            float32 [T, 25, 6]      rad, what the expert does FROM the state of frame t;
                                              point k is at capture + k * 0.05 s (0 .. 1.2 s)
    ideal             float32 [N, 6]          rad, the joint path that keeps the goal, whatever the
                                              arm does; point n at n * 0.02 s, up to T/rate + 1.2 s

An action target for lookahead a is `expert` (or `ideal`) interpolated at capture + a + k * step.
`expert` starts at the arm's state and closes the gap at a bounded speed: no step at the start of a
chunk. Metadata key `physis` is a JSON object: task, seed, rate_hz, expert_step_s, ideal_step_s,
joint_names, image_size, camera.

How the arm moves in them: by turns of 0.8 to 4 s it tracks the expert late (0 to 0.5 s) and with
slowly wandering errors, stands still, follows another path, or goes to a pose far from any ball. So
the joints do not give away the ball, and the way back from any error is in the data. In half of the
episodes the ball is pushed into the corners of its box, in a third it stands for the first seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import mujoco
import numpy as np
from safetensors.numpy import save_file

from physis_core.arm.camera import Camera
from physis_core.arm.expert import approach, ideal
from physis_core.arm.kinematics import HOME_RAD, Kinematics
from physis_core.arm.limits import JOINT_NAMES
from physis_core.arm.scene import CAMERA_NAME, build_model, place_target
from physis_core.arm.tasks import TASKS, Follow, Task, make_task
from physis_core.model.image_input import resize_rgb
from physis_core.types import Array, UserError

RENDER_SIZE = 128
FAR_RAD = np.array([1.7, 0.5, 0.6, 0.6, 0.3, 1.7])
"""How far from the home pose an arm may stray, each joint on its own."""

IMAGE_SIZE = (64, 64)
EXPERT_STEP_S = 0.05
EXPERT_POINTS = 25
IDEAL_STEP_S = 0.02
MODES = ("track", "track", "track", "still", "other", "astray")
_AHEAD_S = EXPERT_STEP_S * (EXPERT_POINTS - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeConfig:
    """What one episode is made of; with its index it determines every byte of the file."""

    task: str = "follow"
    seed: int = 1
    duration_s: float = 30.0
    rate_hz: float = 20.0

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UserError("task", self.task, f"one of {', '.join(TASKS)}")
        if self.seed < 0:
            raise UserError("seed", self.seed, "must not be negative")
        if not 1.0 <= self.duration_s <= 600.0:
            raise UserError("duration", self.duration_s, "must be between 1 and 600 s")
        if not 1.0 <= self.rate_hz <= 50.0:
            raise UserError("rate", self.rate_hz, "must be between 1 and 50 Hz")

    @property
    def frames(self) -> int:
        return round(self.duration_s * self.rate_hz)


def executed_path(path: Array, other: Array, random: np.random.Generator) -> Array:
    """Where an imperfect arm is, [n, 6] rad, while the ideal is `path` [n, 6] (a step per 0.02 s).

    `other` [n, 6] is a path that has nothing to do with the ball.
    """
    n = len(path)
    out = np.empty_like(path)
    here = (path if random.random() < 0.3 else other)[0] + random.normal(0.0, 0.1, 6)
    error = np.zeros(6)
    # An Ornstein-Uhlenbeck walk with a memory of about half a second.
    memory = np.exp(-IDEAL_STEP_S / 0.5)
    spread = random.uniform(0.005, 0.06)
    turn_ends, mode, astray = 0, "track", path[0]
    late, gain_hz, speed_rad_s = 0, 6.0, 1.2
    for i in range(n):
        if i >= turn_ends:
            turn_ends = i + int(random.uniform(0.8, 4.0) / IDEAL_STEP_S)
            mode = str(random.choice(MODES))
            astray = np.array(HOME_RAD) + random.uniform(-FAR_RAD, FAR_RAD)
            late = int(random.uniform(0.0, 0.5) / IDEAL_STEP_S)
            gain_hz = random.uniform(3.0, 15.0)
            speed_rad_s = random.uniform(0.8, 2.0)
        error = memory * error + np.sqrt(1.0 - memory**2) * random.normal(0.0, spread, 6)
        wanted = {
            "track": path[max(0, i - late)] + error,
            "other": other[i],
            "still": here,
            "astray": astray,
        }[mode]
        reach = speed_rad_s * IDEAL_STEP_S
        here = here + np.clip(gain_hz * IDEAL_STEP_S * (wanted - here), -reach, reach)
        out[i] = here
    return out


class EpisodeMaker:
    """Makes episodes one after another with one model, one solver and one camera."""

    def __init__(self, config: EpisodeConfig) -> None:
        self.config = config
        self._model = build_model()
        self._data = mujoco.MjData(self._model)
        self._kinematics = Kinematics(self._model)
        self._camera = Camera(self._model, width=RENDER_SIZE, height=RENDER_SIZE)

    def make(self, index: int) -> dict[str, Array]:
        """The arrays of episode `index`, as the module's docstring lists them."""
        config = self.config
        random = np.random.default_rng([config.seed, index])
        # Seeds of training tasks lie above a million, so that small ones are free for evaluation.
        task_seed = 1_000_000 * (config.seed + 1) + index
        task = _varied(make_task(config.task, task_seed), random)
        dense_s = np.arange(0.0, config.duration_s + _AHEAD_S + IDEAL_STEP_S, IDEAL_STEP_S)
        path = ideal(self._kinematics, task, dense_s)
        other = ideal(self._kinematics, Follow(seed=task_seed + 500_000), dense_s)
        moved = executed_path(path, other, random)

        frame_s = np.arange(config.frames) / config.rate_hz
        joints = _sample(dense_s, moved, frame_s)
        ahead_s = frame_s[:, None] + np.arange(EXPERT_POINTS) * EXPERT_STEP_S
        expert = approach(joints, _sample(dense_s, path, ahead_s), EXPERT_STEP_S)

        images = np.empty((config.frames, *IMAGE_SIZE, 3), dtype=np.uint8)
        targets = np.empty((config.frames, 3))
        end_effector = np.empty((config.frames, 3))
        for i, t in enumerate(frame_s):
            targets[i] = task.target(float(t))
            images[i] = resize_rgb(self._picture(joints[i], targets[i]), IMAGE_SIZE)
            end_effector[i] = self._data.site_xpos[0]
        return {
            "images": images,
            "joint_positions": joints.astype(np.float32),
            "target_positions": targets.astype(np.float32),
            "end_effector": end_effector.astype(np.float32),
            "expert": expert.astype(np.float32),
            "ideal": path.astype(np.float32),
        }

    def metadata(self, index: int) -> dict[str, str]:
        config = self.config
        return {
            "physis": json.dumps(
                {
                    "format": 2,
                    "task": config.task,
                    "seed": config.seed,
                    "index": index,
                    "rate_hz": config.rate_hz,
                    "expert_step_s": EXPERT_STEP_S,
                    "ideal_step_s": IDEAL_STEP_S,
                    "joint_names": list(JOINT_NAMES),
                    "image_size": list(IMAGE_SIZE),
                    "camera": CAMERA_NAME,
                },
                sort_keys=True,
            )
        }

    def close(self) -> None:
        self._camera.close()

    def _picture(self, joints: Array, target: Array) -> Array:
        self._data.qpos[:] = joints
        place_target(self._model, self._data, target)
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        return self._camera.render(self._data)


def _varied(task: Task, random: np.random.Generator) -> Task:
    """The task with the ball in corners and at rest more often than it would be by itself."""
    stretch = random.uniform(1.0, 2.5) if random.random() < 0.5 else 1.0
    stand_s = random.uniform(0.0, 15.0) if random.random() < 0.3 else 0.0
    if not isinstance(task, Follow):
        return task
    return replace(task, stretch=stretch, stand_s=stand_s)


def _sample(dense_s: Array, values: Array, at_s: Array) -> Array:
    """Linear interpolation of values [n, j] given at dense_s [n], at the times at_s [...]."""
    columns = [np.interp(at_s, dense_s, values[:, j]) for j in range(values.shape[1])]
    return np.stack(columns, axis=-1)


def generate(config: EpisodeConfig, out: Path, episodes: int) -> int:
    """Write the episodes that are not there yet; returns how many were made."""
    if episodes < 1:
        raise UserError("episodes", episodes, "must be at least 1")
    out.mkdir(parents=True, exist_ok=True)
    _check_same_config(config, out)
    missing = [i for i in range(episodes) if not _file(out, i).exists()]
    if not missing:
        return 0
    maker = EpisodeMaker(config)
    begun_s = time.monotonic()
    for done, index in enumerate(missing, start=1):
        path = _file(out, index)
        partial = path.with_suffix(".partial")
        save_file(maker.make(index), partial, metadata=maker.metadata(index))
        os.replace(partial, path)
        spent_s = time.monotonic() - begun_s
        left_s = spent_s / done * (len(missing) - done)
        print(
            f"episode {index + 1}/{episodes}  {done * config.frames / spent_s:.0f} frames/s "
            f" {left_s:.0f} s left",
            file=sys.stderr,
            flush=True,
        )
    maker.close()
    return len(missing)


def _file(out: Path, index: int) -> Path:
    return out / f"episode_{index:05d}.safetensors"


def _check_same_config(config: EpisodeConfig, out: Path) -> None:
    """Episodes of two configurations in one folder would be mixed without a sign of it."""
    wanted = json.dumps(
        {
            "task": config.task,
            "seed": config.seed,
            "duration_s": config.duration_s,
            "rate_hz": config.rate_hz,
        },
        sort_keys=True,
    )
    note = out / "config.json"
    if not note.exists():
        note.write_text(wanted + "\n")
    elif note.read_text().strip() != wanted:
        raise UserError("out", str(out), f"holds episodes of another configuration ({note})")


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate episodes of the scripted expert.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--task", default="follow", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--duration", type=float, default=30.0, help="seconds per episode")
    parser.add_argument("--rate", type=float, default=20.0, help="frames per second")
    args = parser.parse_args()
    try:
        config = EpisodeConfig(
            task=args.task, seed=args.seed, duration_s=args.duration, rate_hz=args.rate
        )
        generate(config, args.out, args.episodes)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
