"""Reads the rendered frames of `physis_lab.training.frames`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from physis_core.types import Array, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameFile:
    """frames uint8 [T, H, W, 3] are memory-mapped from the file."""

    frames: Tensor
    joint_positions: Array
    target_positions: Array
    end_effector: Array
    scene: Array


class FrameSet:
    """All files of a folder, or some of them.

    Raises:
        UserError: none, or frames of several sizes.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        if not files:
            raise UserError("frames", [], "no frames_*.safetensors files")
        self.files: list[FrameFile] = []
        for path in files:
            with safe_open(path, framework="pt") as file:
                self.files.append(
                    FrameFile(
                        frames=file.get_tensor("frames"),
                        joint_positions=file.get_tensor("joint_positions").numpy(),
                        target_positions=file.get_tensor("target_positions").numpy(),
                        end_effector=file.get_tensor("end_effector").numpy(),
                        scene=file.get_tensor("scene").numpy(),
                    )
                )
        sizes = {tuple(f.frames.shape[1:3]) for f in self.files}
        if len(sizes) > 1:
            raise UserError("frames", sorted(sizes), "files of several frame sizes")
        height, width = sizes.pop()
        self.frame_size = (int(height), int(width))

    def draw(self, rows: int, random: np.random.Generator) -> Tensor:
        """Frames uint8 [rows, H, W, 3] from anywhere."""
        chosen = random.integers(len(self.files), size=rows)
        at = [random.integers(len(self.files[n].frames)) for n in chosen]
        return torch.stack([self.files[n].frames[t] for n, t in zip(chosen, at, strict=True)])

    def draw_poses(self, rows: int, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Frames uint8 [rows, H, W, 3] and end effectors float32 [rows, 3] m."""
        chosen = random.integers(len(self.files), size=rows)
        at = [random.integers(len(self.files[n].frames)) for n in chosen]
        pairs = list(zip(chosen, at, strict=True))
        frames = torch.stack([self.files[n].frames[t] for n, t in pairs])
        places = np.stack([self.files[n].end_effector[t] for n, t in pairs])
        return frames, torch.from_numpy(places)


def background_of(data: FrameSet, seed: int, frames: int = 256) -> Tensor:
    """What never moves: the median of frames from everywhere, float32 [3, H, W] from -1 to 1."""
    picked = data.draw(frames, np.random.default_rng([seed, 1 << 41]))
    middle = np.median(picked.numpy(), axis=0).astype(np.float32)
    return torch.from_numpy(middle).permute(2, 0, 1) / 127.5 - 1.0


def split(folder: Path, held_out: int) -> tuple[list[Path], list[Path]]:
    """Files for training and, the last ones, for validation. Raises UserError: too few."""
    files = sorted(folder.glob("frames_*.safetensors"))
    if len(files) <= held_out:
        raise UserError("frames", str(folder), f"needs over {held_out} frames_*.safetensors files")
    return files[:-held_out], files[-held_out:]
