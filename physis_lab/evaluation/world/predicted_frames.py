"""Quality of the frames that a policy predicts.

    python -m physis_lab.evaluation.world.predicted_frames --data runs/follow \\
        --checkpoint checkpoints/physis_tiny_wam.safetensors

Runs streams of SEQUENCE chunks along held-out episodes (the last ones of the folder), staged as in
the engine. The last chunk's frames are compared with renderings of their ground truth: the arm at
the expert's label and the ball at its position at that time. Baselines: the current camera frame,
and the true frame through the autoencoder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from physis_core.model.description import FRAMES
from physis_core.model.tiny.loading import load_tiny
from physis_core.observe.result_file import write_result
from physis_core.types import Array, UserError
from physis_lab.evaluation.intervals import mean_interval
from physis_lab.evaluation.world.rollouts import psnr_db
from physis_lab.training.dataset import EpisodeSet
from physis_lab.training.frames import FrameMaker
from physis_lab.training.predicted_frames import PredictedFramesConfig, lookaheads, shown_moments
from physis_lab.training.staged_batch import StagedBatch

SEQUENCE = 8
HELD_OUT = 2


def measure(checkpoint: Path, files: list[Path], rows: int, seed: int) -> dict[str, Array]:
    """Mean PSNR in dB of each row's frames, [rows] each: `predicted`, `now`, `coded`.

    Raises:
        UserError: the policy predicts no frames, or episodes are too short.
    """
    model = load_tiny({}, str(checkpoint), None, "cpu")
    config = model.config
    if not config.draws:
        raise UserError("checkpoint", str(checkpoint), "is a policy that predicts no frames")
    pictures = PredictedFramesConfig(
        frame_times_s=config.frame_times_s, lookahead_max_s=config.lookahead_max_s
    )
    data = EpisodeSet(files)
    stride = round(config.period_s * data.rate_hz)
    reach = int(np.ceil(pictures.reach_s * data.rate_hz))
    random = np.random.default_rng([seed, 0x65796573])
    streams = StagedBatch(model, rows=rows, seed=seed)
    begins = []
    for _ in range(rows):
        number = int(random.integers(len(data.episodes)))
        last = len(data.episodes[number].images) - reach - stride * (SEQUENCE - 1)
        if last < 1:
            raise UserError("data", str(files[number]), f"is shorter than {SEQUENCE} chunks")
        begins.append((number, int(random.integers(last))))
    ahead_s = [lookaheads(pictures, t + 1, data.rate_hz, n)[-1] for n, t in begins]
    made: dict[str, Tensor] = {}
    for chunk in range(SEQUENCE):
        at = [(data.episodes[n], t + stride * chunk) for n, t in begins]
        made = streams.run_chunk(
            {
                "image": torch.stack([e.images[t] for e, t in at]).unsqueeze(1),
                "joint_positions": torch.tensor(np.stack([e.joint_positions[t] for e, t in at])),
                "lookahead_s": torch.tensor(np.array(ahead_s, np.float32)).unsqueeze(1),
            }
        )
    maker = FrameMaker(config.frame_size)
    found: dict[str, list[float]] = {"predicted": [], "now": [], "coded": []}
    for row, (episode, t) in enumerate(at):
        joints, places = shown_moments(
            pictures,
            np.array([ahead_s[row]]),
            episode.expert[t : t + 1],
            episode.target_positions[t:],
            data.rate_hz,
            data.expert_step_s,
        )
        true = np.stack([maker.frame(q, p)[0] for q, p in zip(joints[0], places[0], strict=True)])
        now, _ = maker.frame(episode.joint_positions[t], episode.target_positions[t])
        with torch.inference_mode():
            coder = model.network.autoencoder
            coded = coder.decode(coder.encode(torch.from_numpy(true))).numpy()
        found["predicted"].append(float(psnr_db(made[FRAMES][row].numpy(), true).mean()))
        found["now"].append(float(psnr_db(np.broadcast_to(now, true.shape), true).mean()))
        found["coded"].append(float(psnr_db(coded, true).mean()))
    maker.close()
    return {name: np.array(values) for name, values in found.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="PSNR of the frames that a policy predicts.")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of episodes")
    parser.add_argument("--rows", type=int, default=64, help="streams")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        if args.rows < 2:
            raise UserError("rows", args.rows, "an interval needs at least 2")
        files = sorted(args.data.glob("episode_*.safetensors"))[-HELD_OUT:]
        found = measure(args.checkpoint, files, args.rows, args.seed)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    figures: dict[str, Any] = {}
    for name, values in found.items():
        mean_db, ci95_db = mean_interval(values)
        figures[name] = {"psnr_db": mean_db, "psnr_ci95_db": ci95_db}
        print(f"{name:9s} {mean_db:5.1f} dB +-{ci95_db:.1f}")
    if args.json:
        write_result(args.json, {"rows": args.rows, "seed": args.seed, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
