"""Frames for the world model: the arm's recorded motions, rendered again with a resting ball.

    python -m physis_lab.training.frames --data runs/follow --out runs/frames --episodes 100

reads the joint paths of `physis_lab.tasks.episodes` and writes `OUT/frames_00000.safetensors` and
so on, each atomically, and resumes after an interruption. One file holds, for T frames at FRAME_HZ:

    frames            uint8   [T, 96, 96, 3]  rendered 192 x 192, then `resize_rgb`
    joint_positions   float32 [T, 6]          rad, at the same instants
    target_positions  float32 [T, 3]          m, the ball
    end_effector      float32 [T, 3]          m
    scene             int64   [T]             increases when the ball is moved to another place

The ball rests for SCENE_S at a place of the episode and is then moved. Commanded joints do not
determine a ball that moves by itself, so the world model is trained on a ball that rests where the
first frame shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import mujoco
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from physis_core.model.image_input import resize_rgb
from physis_core.types import Array, UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.scene import build_model, place_target

FRAME_HZ = 30.0
FRAME_SIZE = (96, 96)
RENDER_SIZE = 192
SCENE_S = 3.0


class FrameMaker:
    """Renders the arm and a resting ball; owns an OpenGL context."""

    def __init__(self, size: tuple[int, int] = FRAME_SIZE) -> None:
        self._model = build_model()
        self._data = mujoco.MjData(self._model)
        self._camera = Camera(self._model, width=RENDER_SIZE, height=RENDER_SIZE)
        self._size = size

    def frame(self, joints: Array, target: Array) -> tuple[Array, Array]:
        """joints [6] rad, target [3] m -> frame uint8 [H, W, 3], end effector [3] m."""
        self._data.qpos[:] = joints
        place_target(self._model, self._data, target)
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        picture = resize_rgb(self._camera.render(self._data), self._size)
        return picture, self._data.site_xpos[0].copy()

    def frames(self, joints: Array, target: Array) -> tuple[Array, Array]:
        """joints [T, 6], target [3] or [T, 3] -> frames [T, H, W, 3], end effector [T, 3]."""
        targets = np.broadcast_to(target, (len(joints), 3))
        made = [self.frame(q, p) for q, p in zip(joints, targets, strict=True)]
        return np.stack([f for f, _ in made]), np.stack([e for _, e in made])

    def close(self) -> None:
        self._camera.close()


def resampled(values: Array, from_hz: float, to_hz: float) -> Array:
    """values [T, n] at `from_hz` -> the same time span at `to_hz`, interpolated linearly."""
    last_s = (len(values) - 1) / from_hz
    at = np.arange(int(last_s * to_hz) + 1) / to_hz * from_hz
    columns = [np.interp(at, np.arange(len(values)), values[:, j]) for j in range(values.shape[1])]
    return np.stack(columns, axis=1)


def standing_ball(targets: Array, frames: int, random: np.random.Generator) -> tuple[Array, Array]:
    """Ball positions [frames, 3], drawn from `targets` [n, 3] once per scene, and scene numbers."""
    scene = np.arange(frames) // round(SCENE_S * FRAME_HZ)
    places = targets[random.integers(len(targets), size=int(scene[-1]) + 1)]
    return places[scene], scene


def frames_file(folder: Path, index: int) -> Path:
    return folder / f"frames_{index:05d}.safetensors"


def generate(data: Path, out: Path, episodes: int, seed: int) -> int:
    """Render missing files; returns their number.

    Raises:
        UserError: the folder of episodes holds fewer.
    """
    sources = sorted(data.glob("episode_*.safetensors"))
    if not 1 <= episodes <= len(sources):
        raise UserError("episodes", episodes, f"{data} holds {len(sources)}")
    out.mkdir(parents=True, exist_ok=True)
    missing = [i for i in range(episodes) if not frames_file(out, i).exists()]
    if not missing:
        return 0
    maker = FrameMaker()
    begun_s = time.monotonic()
    for done, index in enumerate(missing, start=1):
        with safe_open(sources[index], framework="np") as file:
            rate_hz = _rate_hz(file.metadata())
            joints = resampled(file.get_tensor("joint_positions"), rate_hz, FRAME_HZ)
            places = file.get_tensor("target_positions")
        random = np.random.default_rng([seed, index])
        targets, scene = standing_ball(places, len(joints), random)
        frames, end_effector = maker.frames(joints, targets)
        partial = frames_file(out, index).with_suffix(".partial")
        save_file(
            {
                "frames": frames,
                "joint_positions": joints.astype(np.float32),
                "target_positions": targets.astype(np.float32),
                "end_effector": end_effector.astype(np.float32),
                "scene": scene.astype(np.int64),
            },
            partial,
        )
        os.replace(partial, frames_file(out, index))
        left_s = (time.monotonic() - begun_s) / done * (len(missing) - done)
        print(f"frames {index + 1}/{episodes}  {left_s:.0f} s left", file=sys.stderr, flush=True)
    maker.close()
    return len(missing)


def _rate_hz(metadata: dict[str, str] | None) -> float:
    return float(json.loads((metadata or {}).get("physis", "{}"))["rate_hz"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Render frames for the world model.")
    parser.add_argument("--data", type=Path, required=True, help="folder of episodes")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        generate(args.data, args.out, args.episodes, args.seed)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
