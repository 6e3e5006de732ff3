"""A probe that reads the end effector's position from a frame, to judge generated frames.

    python -m physis_lab.training.pose_probe --frames runs/frames \\
        --out checkpoints/physis_world_probe.safetensors

It is trained on true frames only, independently of the world model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from physis_core.model.header import read_header
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import ImageEncoder
from physis_core.types import Array
from physis_lab.training.frame_set import FrameSet, split
from physis_lab.training.resumable import ResumableTrainer, RunConfig
from physis_lab.training.train_command import add_run_options, train_on_frames

FORMAT = "physis-probe/1"
HELD_OUT = 4
PIXEL_NOISE = 6.0
"""Of 255, because generated frames are noisier than rendered ones."""


class PoseProbe(nn.Module):
    """Frames uint8 [M, H, W, 3] -> end effector [M, 3] m."""

    def __init__(self, frame_size: tuple[int, int]) -> None:
        super().__init__()
        # The policy's image encoder; only the encoder's sizes of the configuration are used.
        config = TinyConfig(
            joint_names=("none",),
            camera_names=("world",),
            position_mean=(0.0,),
            position_std=(1.0,),
            image_size=frame_size,
            dim=64,
            grid=2,
        )
        self.encoder = ImageEncoder(config)
        self.read = nn.Sequential(nn.Linear(5 * config.dim, 96), nn.GELU(), nn.Linear(96, 3))
        self.mean = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.std = nn.Parameter(torch.ones(3), requires_grad=False)

    def normalised(self, frames: Tensor) -> Tensor:
        out: Tensor = self.read(self.encoder(frames).flatten(1))
        return out

    def forward(self, frames: Tensor) -> Tensor:
        return self.normalised(frames) * self.std + self.mean


class ProbeTrainer(ResumableTrainer):
    def __init__(self, config: RunConfig, data: FrameSet, held_out: FrameSet) -> None:
        torch.manual_seed(config.seed)
        probe = PoseProbe(data.frame_size)
        places = np.concatenate([f.end_effector for f in data.files])
        probe.mean.data.copy_(torch.from_numpy(places.mean(axis=0)))
        probe.std.data.copy_(torch.from_numpy(places.std(axis=0)))
        super().__init__(config, probe, ("place (std)²",))
        self.probe = probe
        self.data = data
        self.held_out = held_out

    def losses(self, random: np.random.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        frames, places = self.data.draw_poses(self.config.rows, random)
        noise = random.standard_normal(tuple(frames.shape), dtype=np.float32)
        pixels = frames.float() + PIXEL_NOISE * torch.from_numpy(noise)
        wanted = (places - self.probe.mean) / self.probe.std
        loss = (self.probe.normalised(pixels) - wanted).square().mean()
        return loss, (loss.detach(),)

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """`error_m`: mean distance on held-out true frames."""
        probe = PoseProbe(self.data.frame_size)
        probe.load_state_dict(self.average)
        random = np.random.default_rng([self.config.seed, 1 << 40])
        frames, places = self.held_out.draw_poses(256, random)
        return {"error_m": (probe(frames) - places).norm(dim=1).mean().item()}

    def write(self, out: Path, found: Mapping[str, float]) -> None:
        checkpoint.write(
            out,
            FORMAT,
            {"frame_size": list(self.data.frame_size)},
            self.average,
            {"run": asdict(self.config), "step": self.step, "held_out": dict(found)},
        )

    def identity(self) -> str:
        return json.dumps([asdict(self.config), len(self.data.files)])


def load_probe(path: Path | str) -> PoseProbe:
    """Raises UserError where the file does not fit."""
    height, width = read_header(path, FORMAT)["config"]["frame_size"]
    probe = PoseProbe((int(height), int(width)))
    probe.load_state_dict(checkpoint.read_weights(path, probe.state_dict()))
    return probe.eval().requires_grad_(False)


@torch.inference_mode()
def read_places(probe: PoseProbe, frames: Array) -> Array:
    """frames uint8 [T, H, W, 3] -> end effector float32 [T, 3] m."""
    parts = [probe(torch.from_numpy(frames[t : t + 64])).numpy() for t in range(0, len(frames), 64)]
    out: Array = np.concatenate(parts)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the probe of the end effector's position.")
    parser.add_argument("--frames", type=Path, required=True, help="folder of rendered frames")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.safetensors)")
    add_run_options(parser, steps=1200, rows=32, row="frames", rate=3e-3, seed=2)
    return train_on_frames(parser, _trainer)


def _trainer(args: argparse.Namespace, config: RunConfig) -> ProbeTrainer:
    seen, held_out = split(args.frames, HELD_OUT)
    return ProbeTrainer(config, FrameSet(seen), FrameSet(held_out))


if __name__ == "__main__":
    sys.exit(main())
