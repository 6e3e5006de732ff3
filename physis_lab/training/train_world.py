"""Train the world model on rendered frames, with the autoencoder of `train_frames`.

    python -m physis_lab.training.train_world --frames runs/frames \\
        --autoencoder runs/frames/autoencoder.safetensors \\
        --out checkpoints/physis_tiny_world.safetensors

An interrupted run resumes from its state file beside the frames. The checkpoint contains the
autoencoder; the loss curve is written beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.noise_schedule import schedule_of
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.config import WorldConfig
from physis_core.model.tiny.loading import load_autoencoder
from physis_core.model.tiny.world_model import FIRST, WorldModel
from physis_core.model.tiny.world_network import WorldNetwork
from physis_core.types import UserError
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.arm.scene import CAMERA_FOVY_DEG
from physis_lab.training.frame_set import FrameSet, split
from physis_lab.training.frames import FRAME_HZ
from physis_lab.training.latent_set import LatentSet, WorldSampling
from physis_lab.training.resumable import ResumableTrainer, RunConfig
from physis_lab.training.staged_batch import StagedBatch
from physis_lab.training.train_command import add_run_options, train_on_frames

HELD_OUT = 4
SINGLE_SHARE = 0.6
"""Share of the run with single chunks without history: appearance is learned faster that way."""


class WorldTrainer(ResumableTrainer):
    def __init__(
        self,
        config: RunConfig,
        model: WorldConfig,
        sampling: WorldSampling,
        data: LatentSet,
        held_out: LatentSet,
        autoencoder: Autoencoder,
    ) -> None:
        torch.manual_seed(config.seed)
        network = WorldNetwork(model)
        network.autoencoder.load_state_dict(autoencoder.state_dict())
        network.autoencoder.eval().requires_grad_(False)
        super().__init__(config, network, ("latent²",))
        self.model = model
        self.sampling = sampling
        self.world = network
        self.data = data
        self.held_out = held_out

    def losses(self, random: np.random.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Loss of all chunks of a sequence at one noise level, block-causal as with noisy KV."""
        rows, sampling, model = self.config.rows, self.sampling, self.model
        if self.step < SINGLE_SHARE * self.config.steps:
            # The same number of chunks per batch, all of different moments.
            rows, sampling = rows * sampling.chunks, replace(sampling, chunks=1, other_share=0.0)
        batch = self.data.sample(sampling, rows, model.frames, random)
        step = random.integers(0, model.steps, rows)
        level = torch.tensor([schedule_of(model).level(int(d)) for d in step])
        share = level[:, None, None, None]
        noise = random.standard_normal(tuple(batch.clean.shape), dtype=np.float32)
        noisy = (1.0 - share) * batch.shown + share * torch.from_numpy(noise)
        made = self.world.sequence(noisy, batch.actions, batch.first, level)
        loss = (made - batch.clean).square().mean()
        return loss, (loss.detach(),)

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Roll out held-out scenes from their first frame, staged as in the engine."""
        model = WorldModel(self.model)
        model.network.load_state_dict(self.average)
        rows, chunks = 6, 20
        streams = StagedBatch(model, rows=rows, seed=self.config.seed)
        random = np.random.default_rng([self.config.seed, 1 << 40])
        begins = self._long_scenes(chunks * self.model.frames + 1)
        picked = [begins[int(random.integers(len(begins)))] for _ in range(rows)]
        first = torch.stack([self.held_out.latents[n][t].float() for n, t in picked])
        square, still = 0.0, 0.0
        frames = self.model.frames
        begin = torch.stack([self.held_out.data.files[n].frames[t] for n, t in picked]).float()
        for chunk in range(chunks):
            spans = [(n, t + 1 + chunk * frames) for n, t in picked]
            files = self.held_out.data.files
            joints = np.stack([files[n].joint_positions[t : t + frames] for n, t in spans])
            made = streams.run_chunk({COMMANDS: torch.from_numpy(joints), FIRST: first})[FRAMES]
            true = torch.stack([files[n].frames[t : t + frames] for n, t in spans]).float()
            square += (made.float() - true).square().mean().item() / chunks
            still += (begin.unsqueeze(1) - true).square().mean().item() / chunks
        return {
            "psnr_db": 10.0 * float(np.log10(255.0**2 / square)),
            "psnr_first_frame_db": 10.0 * float(np.log10(255.0**2 / still)),
        }

    def _long_scenes(self, frames: int) -> list[tuple[int, int]]:
        """(file, first frame) of the held-out scenes with at least `frames` frames."""
        out = []
        for number, file in enumerate(self.held_out.data.files):
            _, begins, counts = np.unique(file.scene, return_index=True, return_counts=True)
            out += [(number, int(t)) for t, n in zip(begins, counts, strict=True) if n >= frames]
        if not out:
            raise UserError("frames", frames, "no held-out scene has that many")
        return out

    def write(self, out: Path, found: Mapping[str, float]) -> None:
        checkpoint.save(
            out,
            self.model,
            self.average,
            {
                "run": asdict(self.config),
                "sampling": asdict(self.sampling),
                "step": self.step,
                "held_out": dict(found),
            },
        )

    def identity(self) -> str:
        return json.dumps([asdict(self.config), asdict(self.model), asdict(self.sampling)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the world model.")
    parser.add_argument("--frames", type=Path, required=True, help="folder of rendered frames")
    parser.add_argument("--autoencoder", type=Path, required=True, help="file of train_frames")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint (.safetensors)")
    add_run_options(parser, steps=3000, rows=10, row="sequences", rate=1.5e-3)
    return train_on_frames(parser, _trainer)


def _trainer(args: argparse.Namespace, config: RunConfig) -> WorldTrainer:
    autoencoder = load_autoencoder(args.autoencoder)
    seen, held_out = (FrameSet(files) for files in split(args.frames, HELD_OUT))
    data = LatentSet(seen, autoencoder, args.frames / "latents.safetensors")
    apart = LatentSet(held_out, autoencoder, args.frames / "latents_held_out.safetensors")
    mean, std = data.position_statistics()
    model = WorldConfig(
        joint_names=JOINT_NAMES,
        position_mean=tuple(float(x) for x in mean),
        position_std=tuple(float(x) for x in np.maximum(std, 0.1 * std.max())),
        camera_fovy_deg=CAMERA_FOVY_DEG,
        frame_size=autoencoder.config.frame_size,
        cell_channels=autoencoder.config.cell_channels,
        autoencoder_width=autoencoder.config.width,
        step_s=1.0 / FRAME_HZ,
    )
    return WorldTrainer(config, model, WorldSampling(), data, apart, autoencoder)


if __name__ == "__main__":
    sys.exit(main())
