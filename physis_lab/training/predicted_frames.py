"""Targets of frame prediction: latents of each chunk's future frames, for recorded episodes.

The recorded arm makes mistakes on purpose, while the labels are the expert's motion from each state
on. The recorded frames therefore do not show the result of a label, and are rendered again: the arm
at the label, the ball at its position at that time.

For each frame t of an episode one lookahead a_t is drawn (constant for SEGMENT_S, plus a jitter per
frame); target frame n shows capture + a_t + `frame_times_s`[n]. One file per episode, written
atomically, holds for the first T frames (those whose future was recorded):

    latents      float16 [T, frames * tokens, channels]  of the autoencoder of a world model's file
    lookahead_s  float32 [T]                             s, the lookahead of t's frames
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.types import Array, UserError
from physis_lab.training.dataset import expert_actions
from physis_lab.training.frames import FrameMaker
from physis_lab.training.latent_set import weights_mark

SEGMENT_S = 6.0
_ENCODE_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedFramesConfig:
    """`frame_times_s`: times of a chunk's frames, in seconds after its first action point."""

    frame_times_s: tuple[float, ...] = (0.1,)
    lookahead_max_s: float = 0.6
    jitter_s: float = 0.02
    seed: int = 1

    def __post_init__(self) -> None:
        if not self.frame_times_s or min(self.frame_times_s) < 0:
            raise UserError("frame_times_s", self.frame_times_s, "needs times of at least 0 s")

    @property
    def reach_s(self) -> float:
        """Latest time of a frame after its capture."""
        return self.lookahead_max_s + max(self.frame_times_s)


def lookaheads(config: PredictedFramesConfig, frames: int, rate_hz: float, index: int) -> Array:
    """a_t of episode `index`, [frames] s; depends only on (seed, index)."""
    random = np.random.default_rng([config.seed, index, 0x666F7265])
    segment = (np.arange(frames) / (rate_hz * SEGMENT_S)).astype(int)
    base = random.uniform(0.0, config.lookahead_max_s, int(segment[-1]) + 1)
    jitter = random.uniform(-config.jitter_s, config.jitter_s, frames)
    out: Array = np.clip(base[segment] + jitter, 0.0, config.lookahead_max_s).astype(np.float32)
    return out


def shown_moments(
    config: PredictedFramesConfig,
    lookahead_s: Array,
    expert: Array,
    targets: Array,
    rate_hz: float,
    expert_step_s: float,
) -> tuple[Array, Array]:
    """Arm and ball in each target frame: joints [T, F, J] rad and positions [T, F, 3] m.

    Args:
        lookahead_s: [T]. expert: [>= T, P, J], as in the episode. targets: [N, 3] m, a place per
            frame of the episode, with N frames that reach past the last picture.
    """
    at_s = lookahead_s[:, None] + np.asarray(config.frame_times_s)
    joints = expert_actions(expert[: len(lookahead_s)], at_s, expert_step_s)
    place = np.arange(len(lookahead_s))[:, None] + at_s * rate_hz
    axes = [np.interp(place, np.arange(len(targets)), targets[:, n]) for n in range(3)]
    return joints, np.stack(axes, axis=-1)


def file_of(folder: Path, episode: Path) -> Path:
    return folder / episode.name.replace("episode_", "predicted_")


def make_predicted_frames(
    config: PredictedFramesConfig, coder: Autoencoder, episodes: Sequence[Path], folder: Path
) -> list[Path]:
    """Render and encode missing files; returns the file of each episode.

    Raises:
        UserError: the folder holds frames of other settings or of another autoencoder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note = json.dumps({**asdict(config), "autoencoder": weights_mark(coder)}, sort_keys=True)
    written = folder / "config.json"
    if written.exists() and written.read_text().strip() != note:
        raise UserError("data", str(folder), "holds frames of other settings; remove it")
    written.write_text(note + "\n")
    missing = [path for path in episodes if not file_of(folder, path).exists()]
    if missing:
        maker = FrameMaker(coder.config.frame_size)
        begun_s = time.monotonic()
        for done, path in enumerate(missing, start=1):
            out = file_of(folder, path)
            partial = out.with_suffix(".partial")
            save_file(_of_episode(config, coder, maker, path), partial)
            os.replace(partial, out)
            left_s = (time.monotonic() - begun_s) / done * (len(missing) - done)
            print(
                f"predicted {done}/{len(missing)}  {left_s:.0f} s left", file=sys.stderr, flush=True
            )
        maker.close()
    return [file_of(folder, path) for path in episodes]


def _of_episode(
    config: PredictedFramesConfig, coder: Autoencoder, maker: FrameMaker, path: Path
) -> dict[str, Any]:
    with safe_open(path, framework="np") as file:
        header = json.loads(file.metadata()["physis"])
        expert, targets = file.get_tensor("expert"), file.get_tensor("target_positions")
    rate_hz = float(header["rate_hz"])
    frames = len(targets) - math.ceil(config.reach_s * rate_hz)
    if frames < 1:
        raise UserError("data", str(path), f"is shorter than {config.reach_s:g} s")
    ahead_s = lookaheads(config, frames, rate_hz, int(header["index"]))
    joints, places = shown_moments(
        config, ahead_s, expert, targets, rate_hz, float(header["expert_step_s"])
    )
    pictures = [
        maker.frame(q, p)[0]
        for q, p in zip(joints.reshape(-1, joints.shape[-1]), places.reshape(-1, 3), strict=True)
    ]
    with torch.inference_mode():
        rows = [
            coder.encode(torch.from_numpy(np.stack(pictures[n : n + _ENCODE_ROWS]))).half()
            for n in range(0, len(pictures), _ENCODE_ROWS)
        ]
    latents = torch.cat(rows).reshape(frames, -1, coder.config.channels)
    return {"latents": latents.numpy(), "lookahead_s": ahead_s}
