"""Train the image autoencoder of the world model.

    python -m physis_lab.training.train_frames --data runs/follow --frames runs/frames \\
        --out runs/frames/autoencoder.safetensors

renders missing frames and trains. An interrupted run resumes from its state file beside the frames.
The loss curve is written beside the checkpoint.
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
from torch import Tensor

from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.autoencoder import Autoencoder, pixels_of
from physis_core.model.tiny.config import AutoencoderConfig
from physis_lab.training import frames
from physis_lab.training.frame_set import FrameSet, background_of, split
from physis_lab.training.resumable import ResumableTrainer, RunConfig
from physis_lab.training.train_command import add_run_options, train_on_frames

MOVED = 0.06
"""A pixel (scale -1 to 1) that differs more from the background belongs to a moving object."""
MOVED_WEIGHT = 4.0
LATENT_NOISE = 0.1
"""Added to latents in training, in units of their spread, so that decoding tolerates the denoiser's
errors."""
HELD_OUT = 4


class FramesTrainer(ResumableTrainer):
    def __init__(
        self, config: RunConfig, model: AutoencoderConfig, data: FrameSet, held_out: FrameSet
    ) -> None:
        torch.manual_seed(config.seed)
        network = Autoencoder(model)
        with torch.no_grad():
            network.background.copy_(background_of(data, config.seed))
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        super().__init__(config, network, ("pixel²", "pixel² of what moves"))
        self.model = model
        self.autoencoder = network
        self.data = data
        self.held_out = held_out

    def losses(self, random: np.random.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        pixels = pixels_of(self.data.draw(self.config.rows, random))
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        cells = self.autoencoder.encode_pixels(pixels)
        noise = random.standard_normal(tuple(cells.shape), dtype=np.float32)
        made = self.autoencoder.decode_cells(cells + LATENT_NOISE * torch.from_numpy(noise))
        error = made - pixels
        away = (pixels - self.autoencoder.background.detach()).abs().amax(dim=1, keepdim=True)
        moved = (away > MOVED).float()
        weight = 1.0 + MOVED_WEIGHT * moved
        total = (weight * (error.square() + 0.05 * error.abs())).mean()
        plain = error.square().detach()
        return total, (plain.mean(), (plain * moved).sum() / (3.0 * moved.sum() + 1.0))

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """`psnr_db` over all pixels of held-out frames."""
        network = Autoencoder(self.model)
        network.load_state_dict(self.average)
        network.eval()
        picked = self.held_out.draw(128, np.random.default_rng([self.config.seed, 1 << 40]))
        made = network.decode(network.encode(picked))
        square = (made.float() - picked.float()).square().mean().item()
        return {"psnr_db": 10.0 * float(np.log10(255.0**2 / square))}

    def write(self, out: Path, found: Mapping[str, float]) -> None:
        checkpoint.save(
            out,
            self.model,
            self.average,
            {"run": asdict(self.config), "step": self.step, "held_out": dict(found)},
        )

    def identity(self) -> str:
        return json.dumps([asdict(self.config), asdict(self.model), len(self.data.files)])


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the image autoencoder.")
    parser.add_argument("--data", type=Path, help="episodes, to render what is missing of --frames")
    parser.add_argument("--frames", type=Path, required=True, help="folder of rendered frames")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True, help="file to write (.safetensors)")
    add_run_options(parser, steps=2500, rows=16, row="frames", rate=2e-3)
    return train_on_frames(parser, _trainer)


def _trainer(args: argparse.Namespace, config: RunConfig) -> FramesTrainer:
    if args.data is not None:
        frames.generate(args.data, args.frames, args.episodes, args.seed)
    seen, held_out = split(args.frames, HELD_OUT)
    data = FrameSet(seen)
    model = AutoencoderConfig(frame_size=data.frame_size)
    return FramesTrainer(config, model, data, FrameSet(held_out))


if __name__ == "__main__":
    sys.exit(main())
