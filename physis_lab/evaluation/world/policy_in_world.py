"""Judge a policy inside the world model and in the true simulation.

    python -m physis_lab.evaluation.world.policy_in_world \\
        --policy checkpoints/physis_tiny_follow.safetensors \\
        --world checkpoints/physis_tiny_world.safetensors

Both runs are the fast closed loop (`closed_loop`) with the same resting balls and the same delays.
In one the policy sees the camera. In the other it sees the camera once, and from then on only the
frames that the world model generates for the commanded joints. Success: over the last SETTLED_S the
end effector is on average within REACHED_M of its goal above the ball.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.image_input import resize_rgb
from physis_core.model.tiny.loading import load_tiny, load_world
from physis_core.model.tiny.world_model import FIRST
from physis_core.observe.result_file import write_result
from physis_core.types import Array, UserError
from physis_lab.arm.camera import Camera
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.closed_loop import (
    RENDER_SIZE,
    ClosedLoopConfig,
    run,
)
from physis_lab.evaluation.intervals import wilson
from physis_lab.evaluation.policies import ModelPolicy
from physis_lab.tasks.ball import Follow
from physis_lab.tasks.task import Task
from physis_lab.training.frames import FrameMaker
from physis_lab.training.staged_batch import StagedBatch

REACHED_M = 0.03
SETTLED_S = 2.0
STANDS_S = 1e6
"""Longer than any episode: the world model's ball rests (docs/decisions/acwm.md)."""


class PolicyInWorld:
    """Implements `ActionPolicy`: joints from the plant, images from the world model.

    Raises:
        UserError: the policy's chunks and the world's do not begin together.
    """

    def __init__(
        self, policy: Path, world: Path, tasks: Sequence[Task], config: ClosedLoopConfig
    ) -> None:
        rows = len(tasks)
        model = load_tiny({}, str(policy), None, "cpu")
        self._world = load_world({}, str(world), None, "cpu")
        period_s = self._world.config.period_s
        if not math.isclose(period_s, config.period_s, rel_tol=1e-6):
            raise UserError(
                "period_s", config.period_s, f"a chunk of {world} depicts {period_s:g} s"
            )
        self._config = model.config
        self._tasks = tasks
        self._policy_streams = StagedBatch(model, rows=rows, seed=0)
        self._world_streams = StagedBatch(self._world, rows=rows, seed=0)
        self._first: torch.Tensor | None = None
        self._before: Array = np.empty(0)

    @property
    def step_s(self) -> float:
        return self._config.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        joints = np.stack([plant.position for plant in plants]).astype(np.float32)
        seen = self._first_frames(joints) if self._first is None else self._drawn(joints)
        self._before = joints
        images = [resize_rgb(frame, self._config.image_size) for frame in seen]
        outputs = self._policy_streams.run_chunk(
            {
                "image": torch.from_numpy(np.stack(images)).unsqueeze(1),
                "joint_positions": torch.from_numpy(joints),
                "lookahead_s": torch.full((len(plants), 1), lookahead_s),
            }
        )
        return outputs["action"].numpy().astype(np.float64)

    def _first_frames(self, joints: Array) -> Array:
        maker = FrameMaker(self._world.config.frame_size)
        frames = np.stack(
            [maker.frame(q, task.target(0.0))[0] for q, task in zip(joints, self._tasks)]
        )
        maker.close()
        with torch.inference_mode():
            self._first = self._world.network.autoencoder.encode(torch.from_numpy(frames))
        return frames

    def _drawn(self, joints: Array) -> Array:
        """Generated frames of the present, [E, H, W, 3]: the last frame of the chunk up to now."""
        frames = self._world.config.frames
        share = (np.arange(1, frames + 1) / frames)[None, :, None]
        path = self._before[:, None] + share * (joints - self._before)[:, None]
        assert self._first is not None
        made = self._world_streams.run_chunk(
            {COMMANDS: torch.from_numpy(path.astype(np.float32)), FIRST: self._first}
        )
        out: Array = made[FRAMES][:, -1].numpy()
        return out


def success(errors: Array) -> Array:
    """errors [E, ticks] m, a tick per 0.01 s -> bool [E]."""
    reached: Array = errors[:, -round(SETTLED_S / 0.01) :].mean(axis=1) < REACHED_M
    return reached


def figures(errors: Array) -> dict[str, Any]:
    reached = success(errors)
    low, high = wilson(int(reached.sum()), len(reached))
    late = errors[:, -round(SETTLED_S / 0.01) :].mean(axis=1)
    return {
        "success": float(reached.mean()),
        "success_ci95": [low, high],
        "error_m_p50": float(np.median(late)),
        "error_m_mean": float(late.mean()),
    }


def compare(policy: Path, world: Path, config: ClosedLoopConfig) -> dict[str, Any]:
    tasks: list[Task] = [
        Follow(seed=config.first_seed + n, stand_s=STANDS_S) for n in range(config.episodes)
    ]
    scene = build_model()
    with Camera(scene, width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        seeing = ModelPolicy(policy, camera, episodes=config.episodes)
        true = run(seeing, tasks, config)
    drawn = run(PolicyInWorld(policy, world, tasks, config), tasks, config)
    return {
        "true_simulation": figures(true),
        "world_model": figures(drawn),
        "same_verdict": float((success(true) == success(drawn)).mean()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="A policy in the world model and in truth.")
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--world", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--duration", type=float, default=6.0, help="seconds each")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        config = ClosedLoopConfig(
            episodes=args.episodes, duration_s=args.duration, first_seed=args.seed
        )
        if args.duration <= SETTLED_S:
            raise UserError("duration", args.duration, f"must be above {SETTLED_S} s")
        found = compare(args.policy, args.world, config)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    for name in ("true_simulation", "world_model"):
        one = found[name]
        low, high = one["success_ci95"]
        print(
            f"{name:16s} success {one['success']:.2f} ({low:.2f}..{high:.2f})"
            f"  error {1e3 * one['error_m_mean']:.1f} mm, median {1e3 * one['error_m_p50']:.1f} mm"
        )
    print(f"same verdict in {found['same_verdict']:.2f} of {args.episodes} episodes")
    if args.json:
        write_result(args.json, {"config": asdict(config), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
