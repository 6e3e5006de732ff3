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
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from physis_core.arm.episodes import EpisodeConfig, generate
from physis_core.learn.curve import draw_curve
from physis_core.learn.dataset import EpisodeSet, SamplingConfig
from physis_core.learn.objective import Locator, history_errors, sequence_losses
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """AdamW with a linear warm-up and a cosine to zero; the checkpoint holds the moving average."""

    steps: int = 5000
    rows: int = 8
    seed: int = 1
    learning_rate: float = 1.5e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    average_decay: float = 0.998
    save_every: int = 250
    held_out: int = 2

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "save_every"):
            if getattr(self, name) < 1:
                raise UserError(name, getattr(self, name), "must be at least 1")
        if not self.learning_rate > 0:
            raise UserError("learning_rate", self.learning_rate, "must be above 0")

    def rate(self, step: int) -> float:
        """Learning rate of step 0 .. steps - 1."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return self.learning_rate * warm * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))


class Trainer:
    """The state of a run: network, probe, optimiser, moving average, and the losses so far."""

    def __init__(
        self, train: TrainConfig, model: TinyConfig, sampling: SamplingConfig, data: EpisodeSet
    ) -> None:
        torch.manual_seed(train.seed)
        self.train, self.model, self.sampling, self.data = train, model, sampling, data
        self.network = TinyNetwork(model)
        self.locator = Locator(self.network, *data.target_statistics())
        self.parameters = [*self.network.parameters(), *self.locator.parameters()]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=train.learning_rate,
            weight_decay=train.weight_decay,
            betas=(0.9, 0.98),
        )
        self.average = {n: p.detach().clone() for n, p in self.network.state_dict().items()}
        self.step = 0
        self.losses: list[tuple[float, float]] = []

    def advance(self) -> tuple[float, float]:
        """One step of the optimiser; returns the losses (action, locate)."""
        random = np.random.default_rng([self.train.seed, self.step])
        batch = self.data.sample(self.sampling, self.train.rows, random, augment=True)
        noisy_step = torch.from_numpy(random.integers(0, self.model.steps, self.train.rows))
        noise = random.standard_normal(tuple(batch.actions.shape), dtype=np.float32)
        rows, chunks, _, joints = batch.actions.shape
        wrong = history_errors(rows, chunks, joints, random)
        for group in self.optimizer.param_groups:
            group["lr"] = self.train.rate(self.step)
        losses = sequence_losses(
            self.network, self.locator, batch, noisy_step, torch.from_numpy(noise), wrong
        )
        self.optimizer.zero_grad(set_to_none=True)
        losses.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.parameters, self.train.gradient_clip)
        self.optimizer.step()
        self.step += 1
        # A young average would still hold the random start.
        decay = min(self.train.average_decay, self.step / (self.step + 10.0))
        for name, value in self.network.state_dict().items():
            self.average[name].lerp_(value, 1.0 - decay)
        found = (losses.action.item(), losses.locate.item())
        self.losses.append(found)
        return found

    @torch.inference_mode()
    def validate(self, held_out: EpisodeSet, batches: int = 4) -> dict[str, float]:
        """Errors of the averaged weights on episodes that training never sees.

        `action_rad`: root mean square of the prediction from pure noise; `locate_m`: of the ball.
        """
        network = TinyNetwork(self.model)
        network.load_state_dict(self.average)
        action, locate = 0.0, 0.0
        for number in range(batches):
            random = np.random.default_rng([self.train.seed, 1 << 40, number])
            batch = held_out.sample(self.sampling, self.train.rows, random, augment=False)
            noise = random.standard_normal(tuple(batch.actions.shape), dtype=np.float32)
            losses = sequence_losses(
                network,
                self.locator,
                batch,
                torch.zeros(self.train.rows, dtype=torch.int64),
                torch.from_numpy(noise),
            )
            action += losses.action.item() / batches
            locate += losses.locate.item() / batches
        joint_scale = float(np.sqrt(np.mean(np.square(self.model.position_std))))
        place_scale = float(self.locator.std.square().mean().sqrt())
        return {
            "action_rad": math.sqrt(action) * joint_scale,
            "locate_m": math.sqrt(locate) * place_scale,
        }

    def identity(self) -> str:
        """What must be equal for a run to be continued, as JSON."""
        return json.dumps(
            [asdict(self.train), self.model.to_json(), asdict(self.sampling), self.data.source]
        )

    def save_state(self, path: Path) -> None:
        partial = path.with_name(path.name + ".partial")
        torch.save(
            {
                "identity": self.identity(),
                "step": self.step,
                "network": self.network.state_dict(),
                "locator": self.locator.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "average": self.average,
                "losses": torch.tensor(self.losses),
            },
            partial,
        )
        partial.replace(path)

    def load_state(self, path: Path) -> None:
        """Raises UserError where the state is of a run with other settings."""
        state: Mapping[str, Any] = torch.load(path, weights_only=True)
        if state["identity"] != self.identity():
            raise UserError(
                "out", str(path), "is the state of a run with other settings; remove it"
            )
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.locator.load_state_dict(state["locator"])
        self.optimizer.load_state_dict(state["optimizer"])
        average: dict[str, Tensor] = state["average"]
        self.average = average
        self.losses = [(float(a), float(b)) for a, b in state["losses"]]


def run(trainer: Trainer, held_out: EpisodeSet, out: Path, state_file: Path) -> dict[str, float]:
    """Train to the end, saving now and then; returns the last validation."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if state_file.exists():
        trainer.load_state(state_file)
        print(f"going on from step {trainer.step}", file=sys.stderr)
    steps, begun, begun_s = trainer.train.steps, trainer.step, time.monotonic()
    found: dict[str, float] = {}
    while trainer.step < steps:
        trainer.advance()
        if trainer.step % 25 == 0:
            recent = np.mean(trainer.losses[-25:], axis=0)
            spent_s = time.monotonic() - begun_s
            left_s = spent_s / (trainer.step - begun) * (steps - trainer.step)
            print(
                f"step {trainer.step}/{steps}  action {recent[0]:.4f}  locate {recent[1]:.4f}"
                f"  {left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
        if trainer.step % trainer.train.save_every == 0 or trainer.step == steps:
            found = trainer.validate(held_out)
            provenance = {
                "train": asdict(trainer.train),
                "sampling": asdict(trainer.sampling),
                "data": {**trainer.data.source, "episodes": len(trainer.data.episodes)},
                "step": trainer.step,
                "held_out": found,
            }
            checkpoint.save(out, trainer.model, trainer.average, provenance)
            trainer.save_state(state_file)
            draw_curve(out.with_suffix(".png"), trainer.losses)
            print(
                f"step {trainer.step}: saved; held out {found['action_rad']:.4f} rad,"
                f" ball {found['locate_m']:.4f} m",
                file=sys.stderr,
                flush=True,
            )
    return found


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
        trainer = Trainer(train, model, sampling, data)
        state_file = args.data / (args.out.name + ".state")
        run(trainer, EpisodeSet(files[-train.held_out :]), args.out, state_file)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
