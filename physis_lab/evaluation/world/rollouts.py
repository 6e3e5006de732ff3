"""Error of a world model's roll-outs.

    python -m physis_lab.evaluation.world.rollouts \\
        --checkpoint checkpoints/physis_tiny_world.safetensors \\
        --probe checkpoints/physis_world_probe.safetensors --plot docs/images/acwm.png

A roll-out gets one true frame and then only commanded joints, for 50 chunks. The motions are of the
same kinds as in training but of held-out seeds; the ball is at rest. Figures:

    psnr_db              generated frames against true frames
    repeat_first_db      baseline: the first frame, repeated
    repeat_last_db       baseline: the true frame before each chunk, repeated
    autoencoder_db       upper bound: true frames, encoded and decoded
    pose_m               distance between the end effector that a fixed probe reads from generated
                         frames and the true one; the same for true frames is given too

Means over roll-outs with 95% intervals; `late` is over the last ten chunks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.tiny.config import WorldConfig
from physis_core.model.tiny.loading import load_world
from physis_core.model.tiny.world_model import FIRST, WorldModel
from physis_core.observe.result_file import write_result
from physis_core.types import Array, UserError
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.scene import build_model
from physis_lab.evaluation.intervals import mean_interval
from physis_lab.tasks.ball import Follow
from physis_lab.tasks.demonstrations import executed_path
from physis_lab.tasks.episodes import EpisodeConfig
from physis_lab.tasks.expert import ideal
from physis_lab.training.frames import FrameMaker
from physis_lab.training.pose_probe import load_probe, read_places
from physis_lab.training.staged_batch import StagedBatch

IDEAL_STEP_S = 0.02
LATE_CHUNKS = 10
ROLL_OUTS_AT_ONCE = 8
FIRST_SEED = 900_000
"""Seeds of tasks below a million are never trained on (`physis_lab.tasks.episodes`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One motion with one ball: true frames [1 + T, H, W, 3], joints [1 + T, J] and end effector
    [1 + T, 3] m; index 0 is the first frame."""

    frames: Array
    joints: Array
    end_effector: Array


def make_scene(seed: int, frames: int, step_s: float, maker: FrameMaker, arm: Kinematics) -> Scene:
    random = np.random.default_rng([FIRST_SEED, seed])
    duration_s = EpisodeConfig().duration_s
    dense_s = np.arange(0.0, duration_s, IDEAL_STEP_S)
    path = ideal(arm, Follow(seed=FIRST_SEED + seed), dense_s)
    other = ideal(arm, Follow(seed=FIRST_SEED // 2 + seed), dense_s)
    moved = executed_path(path, other, random)
    begin_s = random.uniform(0.0, duration_s - (frames + 2) * step_s)
    at_s = begin_s + step_s * np.arange(frames + 1)
    joints = np.stack([np.interp(at_s, dense_s, moved[:, j]) for j in range(moved.shape[1])], 1)
    ball = Follow(seed=FIRST_SEED + seed).target(begin_s)
    pictures, places = maker.frames(joints, ball)
    return Scene(frames=pictures, joints=joints.astype(np.float32), end_effector=places)


@torch.inference_mode()
def roll_out(model: WorldModel, scenes: Sequence[Scene], chunks: int, seed: int) -> Array:
    """Generated frames [E, chunks * F, H, W, 3] from first frames and joints."""
    config = model.config
    first = model.network.autoencoder.encode(
        torch.from_numpy(np.stack([scene.frames[0] for scene in scenes]))
    )
    streams = StagedBatch(model, rows=len(scenes), seed=seed)
    made = []
    for chunk in range(chunks):
        begin = 1 + chunk * config.frames
        joints = np.stack([s.joints[begin : begin + config.frames] for s in scenes])
        out = streams.run_chunk({COMMANDS: torch.from_numpy(joints), FIRST: first})
        made.append(out[FRAMES].numpy())
    whole: Array = np.concatenate(made, axis=1)
    return whole


def psnr_db(made: Array, true: Array) -> Array:
    """PSNR per frame: [..., H, W, 3] twice -> [...]."""
    square = np.square(made.astype(np.float32) - true.astype(np.float32)).mean(axis=(-3, -2, -1))
    out: Array = 10.0 * np.log10(255.0**2 / np.maximum(square, 1e-3))
    return out


def with_interval(values: Array) -> dict[str, float]:
    """Mean of values [E], and the half width of its 95% interval."""
    mean, half = mean_interval(values)
    return {"mean": mean, "ci95": half}


@torch.inference_mode()
def measure(
    model: WorldModel, probe_file: Path, scenes: Sequence[Scene], chunks: int, seed: int
) -> tuple[dict[str, Any], Array]:
    """Figures over scenes, and the generated frames [E, T, H, W, 3]."""
    config, coder = model.config, model.network.autoencoder
    made = np.concatenate(
        [
            roll_out(model, scenes[n : n + ROLL_OUTS_AT_ONCE], chunks, seed + n)
            for n in range(0, len(scenes), ROLL_OUTS_AT_ONCE)
        ]
    )
    true = np.stack([scene.frames[1:] for scene in scenes])
    before = np.stack(
        [np.repeat(s.frames[: -1 : config.frames], config.frames, axis=0) for s in scenes]
    )
    first = np.stack([scene.frames[:1] for scene in scenes])
    coded = np.stack([coder.decode(coder.encode(torch.from_numpy(t))).numpy() for t in true])
    probe = load_probe(probe_file)
    places = np.stack([scene.end_effector[1:] for scene in scenes])
    late = slice(-LATE_CHUNKS * config.frames, None)
    figures: dict[str, Any] = {}
    for name, shown in (
        ("psnr_db", made),
        ("repeat_first_db", np.broadcast_to(first, true.shape)),
        ("repeat_last_db", before),
        ("autoencoder_db", coded),
    ):
        found = psnr_db(shown, true)
        figures[name] = with_interval(found.mean(axis=1))
        figures[f"{name}_late"] = with_interval(found[:, late].mean(axis=1))
    # Baseline: the probe on the frozen first frame.
    still = np.stack([read_places(probe, scene.frames[:1]) for scene in scenes])
    for name, read in (
        ("pose_m", np.stack([read_places(probe, frames) for frames in made])),
        ("pose_true_frames_m", np.stack([read_places(probe, frames) for frames in true])),
        ("pose_first_frame_m", np.repeat(still, places.shape[1], axis=1)),
    ):
        error = np.linalg.norm(read - places, axis=-1)
        figures[name] = with_interval(error.mean(axis=1))
        figures[f"{name}_late"] = with_interval(error[:, late].mean(axis=1))
    return figures, made


def draw(path: Path, scene: Scene, made: Array, config: WorldConfig, columns: int = 8) -> None:
    """Plot true frames above generated ones over the time of a roll-out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    picked = np.linspace(0, len(made) - 1, columns).round().astype(int)
    figure, grid = pyplot.subplots(2, columns, figsize=(1.6 * columns, 3.6))
    for column, t in enumerate(picked):
        for row, shown in ((0, scene.frames[1 + t]), (1, made[t])):
            axes = grid[row][column]
            axes.imshow(shown, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
        grid[0][column].set_title(f"{(t + 1) * config.step_s:.2f} s")
    grid[0][0].set_ylabel("true")
    grid[1][0].set_ylabel("generated")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure a world model's roll-outs.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--probe", type=Path, required=True, help="file of pose_probe")
    parser.add_argument("--roll-outs", type=int, default=16)
    parser.add_argument("--chunks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, help="figure of the first roll-out")
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        for name, least in (("roll_outs", 1), ("chunks", LATE_CHUNKS)):
            if getattr(args, name) < least:
                raise UserError(name, getattr(args, name), f"must be at least {least}")
        model = load_world({}, str(args.checkpoint), None, "cpu")
        maker, arm = FrameMaker(model.config.frame_size), Kinematics(build_model())
        frames = args.chunks * model.config.frames
        scenes = [
            make_scene(args.seed + n, frames, model.config.step_s, maker, arm)
            for n in range(args.roll_outs)
        ]
        maker.close()
        figures, made = measure(model, args.probe, scenes, args.chunks, args.seed)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{args.roll_outs} roll-outs of {args.chunks} chunks (mean, +-95%)")
    for name, value in figures.items():
        print(f"{name:26s}{value['mean']:9.4f}  +-{value['ci95']:.4f}")
    if args.plot:
        draw(args.plot, scenes[0], made[0], model.config)
    if args.json:
        config = {"roll_outs": args.roll_outs, "chunks": args.chunks, "seed": args.seed}
        write_result(args.json, {"config": config, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
