"""Training episodes of the scripted expert, with the errors and delays that a policy will have.

    python -m physis_lab.tasks.episodes --out DIR --episodes 100 --seed 1

writes `DIR/episode_00000.safetensors` and so on, each atomically, and resumes after an
interruption. One file holds, for T frames at `rate_hz` (time 0 = first frame):

    images            uint8   [T, 64, 64, 3]  rendered 128 x 128, then `resize_rgb`
    joint_positions   float32 [T, 6]          rad, at the same instants as the images
    target_positions  float32 [T, 3]          m, the ball, or the goal mark on the floor
    end_effector      float32 [T, 3]          m
    expert            float32 [T, 25, 6]      rad, what the expert does FROM the state of frame t;
                                              point k is at capture + k * 0.05 s (0 .. 1.2 s)
    ideal             float32 [N, 6]          rad, the joint path that keeps the goal, whatever the
                                              arm does; point n at n * 0.02 s, up to T/rate + 1.2 s

An action target for lookahead a is `expert` (or `ideal`) interpolated at capture + a + k * step.
`expert` starts at the arm's state and closes the gap at a bounded speed, so a chunk starts without
a step. Metadata key `physis` is a JSON object: task, seed, rate_hz, expert_step_s, ideal_step_s,
joint_names, image_size, camera.

A task with an object adds `object_positions` float32 [T, 3] m; one whose goal depends on what the
arm does has no `ideal`. How the arm moves in them: `physis_lab.tasks.demonstrations`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mujoco
import numpy as np
from safetensors.numpy import save_file

from physis_core.model.image_input import resize_rgb
from physis_core.types import Array, UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import CAMERA_NAME, build_model
from physis_lab.tasks import TASKS
from physis_lab.tasks.ball import JUMP_PERIOD_S
from physis_lab.tasks.demonstrations import (
    EXPERT_STEP_S,
    IDEAL_STEP_S,
    Motion,
    follow_motion,
    reach_motion,
)
from physis_lab.tasks.push_demonstrations import push_motion
from physis_lab.tasks.task import make_task

RENDER_SIZE = 128
IMAGE_SIZE = (64, 64)

Demonstrator = Callable[[Kinematics, int, np.random.Generator, Array], Motion]
"""(kinematics, task seed, generator, frame times [T] s) -> the motion of one episode."""

DEMONSTRATORS: Mapping[str, Demonstrator] = {
    "follow": follow_motion,
    "follow_jumps": partial(follow_motion, jump_period_s=JUMP_PERIOD_S),
    "reach": reach_motion,
    "push": push_motion,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeConfig:
    """Settings of an episode; with its index they determine every byte of the file."""

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


class EpisodeMaker:
    """Makes episodes with one model, one solver and one camera."""

    def __init__(self, config: EpisodeConfig) -> None:
        self.config = config
        self._demonstrate = DEMONSTRATORS[config.task]
        self._kinematics = Kinematics(build_model())
        model = build_model(props=make_task(config.task, 0).props)
        self._plant = Plant(model)
        self._camera = Camera(model, width=RENDER_SIZE, height=RENDER_SIZE)

    def make(self, index: int) -> dict[str, Array]:
        """The arrays of episode `index`, as listed in the module docstring."""
        config = self.config
        random = np.random.default_rng([config.seed, index])
        # Training tasks have seeds above a million; smaller seeds are for evaluation.
        task_seed = 1_000_000 * (config.seed + 1) + index
        frame_s = np.arange(config.frames) / config.rate_hz
        motion = self._demonstrate(self._kinematics, task_seed, random, frame_s)
        images = np.empty((config.frames, *IMAGE_SIZE, 3), dtype=np.uint8)
        end_effector = np.empty((config.frames, 3))
        for i in range(config.frames):
            images[i] = resize_rgb(self._picture(motion, i), IMAGE_SIZE)
            end_effector[i] = self._plant.end_effector
        arrays = {
            "images": images,
            "joint_positions": motion.joints,
            "target_positions": motion.marks,
            "end_effector": end_effector,
            "expert": motion.expert,
            "ideal": motion.ideal,
            "object_positions": motion.objects,
        }
        return {
            name: values if name == "images" else values.astype(np.float32)
            for name, values in arrays.items()
            if values is not None
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

    def _picture(self, motion: Motion, frame: int) -> Array:
        plant = self._plant
        plant.show(motion.joints[frame], None if motion.objects is None else motion.objects[frame])
        plant.place_target(motion.marks[frame])
        mujoco.mj_kinematics(plant.model, plant.data)
        mujoco.mj_camlight(plant.model, plant.data)
        return self._camera.render(plant.data)


def generate(config: EpisodeConfig, out: Path, episodes: int) -> int:
    """Write missing episodes; returns their number."""
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
    """Refuse to mix episodes of two configurations in one folder."""
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
