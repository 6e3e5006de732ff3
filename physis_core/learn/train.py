"""Train physis-tiny on episodes of the scripted expert.

    python -m physis_core.learn.train --data runs/follow --episodes 160 \\
        --out checkpoints/physis_tiny_follow.safetensors

records the episodes that are missing in the folder, and trains the checkpoint of the repository.

Every batch is a function of (seed, step), so a run that was stopped goes on from its state file in
the data folder as if it had not been. The checkpoint holds the moving average of the weights; a
picture of the loss curve lies beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from physis_core.arm.episodes import EpisodeConfig, generate
from physis_core.learn.dataset import EpisodeSet, SamplingConfig
from physis_core.learn.objective import Locator, history_errors, sequence_losses
from physis_core.learn.resumable import ResumableTrainer, RunConfig, run
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import UserError

VALIDATION_BATCHES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(RunConfig):
    """The policy's run, and how many episodes are kept out of it."""

    steps: int = 5000
    rows: int = 8
    average_decay: float = 0.998
    held_out: int = 2


class Trainer(ResumableTrainer):
    """Trains a policy, and beside it the probe that teaches its image encoder."""

    history_key = "losses"

    def __init__(
        self,
        train: TrainConfig,
        model: TinyConfig,
        sampling: SamplingConfig,
        data: EpisodeSet,
        held_out: EpisodeSet,
    ) -> None:
        torch.manual_seed(train.seed)
        self.model, self.sampling, self.data, self.held_out = model, sampling, data, held_out
        self.policy = TinyNetwork(model)
        self.locator = Locator(self.policy, *data.target_statistics())
        labels = ("action (joint std)²", "ball place (std)²")
        super().__init__(train, self.policy, labels, beside={"locator": self.locator})

    def losses(self, random: np.random.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows = self.config.rows
        batch = self.data.sample(self.sampling, rows, random, augment=True)
        noisy_step = torch.from_numpy(random.integers(0, self.model.steps, rows))
        noise = random.standard_normal(tuple(batch.actions.shape), dtype=np.float32)
        rows, chunks, _, joints = batch.actions.shape
        wrong = history_errors(rows, chunks, joints, random)
        losses = sequence_losses(
            self.policy, self.locator, batch, noisy_step, torch.from_numpy(noise), wrong
        )
        return losses.total, (losses.action, losses.locate)

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Errors of the averaged weights on episodes that training never sees.

        `action_rad`: root mean square of the prediction from pure noise; `locate_m`: of the ball.
        """
        network = TinyNetwork(self.model)
        network.load_state_dict(self.average)
        action, locate = 0.0, 0.0
        for number in range(VALIDATION_BATCHES):
            random = np.random.default_rng([self.config.seed, 1 << 40, number])
            batch = self.held_out.sample(self.sampling, self.config.rows, random, augment=False)
            noise = random.standard_normal(tuple(batch.actions.shape), dtype=np.float32)
            losses = sequence_losses(
                network,
                self.locator,
                batch,
                torch.zeros(self.config.rows, dtype=torch.int64),
                torch.from_numpy(noise),
            )
            action += losses.action.item() / VALIDATION_BATCHES
            locate += losses.locate.item() / VALIDATION_BATCHES
        joint_scale = float(np.sqrt(np.mean(np.square(self.model.position_std))))
        place_scale = float(self.locator.std.square().mean().sqrt())
        return {
            "action_rad": math.sqrt(action) * joint_scale,
            "locate_m": math.sqrt(locate) * place_scale,
        }

    def write(self, out: Path, found: Mapping[str, float]) -> None:
        provenance = {
            "train": asdict(self.config),
            "sampling": asdict(self.sampling),
            "data": {**self.data.source, "episodes": len(self.data.episodes)},
            "step": self.step,
            "held_out": dict(found),
        }
        checkpoint.save(out, self.model, self.average, provenance)

    def identity(self) -> str:
        return json.dumps(
            [asdict(self.config), self.model.to_json(), asdict(self.sampling), self.data.source]
        )


def main() -> int:
    defaults = TrainConfig()
    parser = argparse.ArgumentParser(description="Train physis-tiny on recorded episodes.")
    parser.add_argument("--data", type=Path, required=True, help="folder of episodes")
    parser.add_argument("--episodes", type=int, help="first record what is missing of so many")
    parser.add_argument(
        "--out", type=Path, required=True, help="checkpoint to write (.safetensors)"
    )
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--rows", type=int, default=defaults.rows, help="sequences per batch")
    parser.add_argument("--rate", type=float, default=defaults.learning_rate)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--reference", default="mean", help="what actions are added to: mean, joints"
    )
    args = parser.parse_args()
    try:
        torch.set_num_threads(args.threads)
        train = TrainConfig(
            steps=args.steps, rows=args.rows, learning_rate=args.rate, seed=args.seed
        )
        if args.episodes is not None:
            generate(EpisodeConfig(), args.data, args.episodes)
        files = sorted(args.data.glob("episode_*.safetensors"))
        if len(files) <= train.held_out:
            raise UserError("data", str(args.data), f"needs over {train.held_out} episodes")
        data = EpisodeSet(files[: -train.held_out])
        mean, std = data.position_statistics()
        model = TinyConfig(
            joint_names=data.joint_names,
            camera_names=data.camera_names,
            position_mean=tuple(float(x) for x in mean),
            # A joint that hardly moves must not have its noise blown up to the size of the others.
            position_std=tuple(float(x) for x in np.maximum(std, 0.1 * std.max())),
            image_size=data.image_size,
            action_reference=args.reference,
        )
        sampling = SamplingConfig(
            chunks=model.window_chunks,
            action_steps=model.action_steps,
            step_s=model.step_s,
            period_s=model.period_s,
            lookahead_max_s=model.lookahead_max_s,
        )
        held_out = EpisodeSet(files[-train.held_out :])
        trainer = Trainer(train, model, sampling, data, held_out)
        state_file = args.data / (args.out.name + ".state")
        run(trainer, args.out, state_file)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
