"""Train physis-tiny on episodes of the scripted expert, recording missing episodes first.

    python -m physis_lab.training.train_policy --data runs/follow --episodes 160 \\
        --out checkpoints/physis_tiny_follow.safetensors
    python -m physis_lab.training.train_policy --data runs/follow --episodes 160 \\
        --predict-frames checkpoints/physis_tiny_world.safetensors \\
        --start checkpoints/physis_tiny_follow.safetensors \\
        --perception checkpoints/physis_tiny_follow.safetensors \\
        --levels any --steps 3000 --single-share 0.6 --rows 4 --rate 1e-3 \\
        --out checkpoints/physis_tiny_wam.safetensors

These commands trained the checkpoints of the repository.

Every batch is a function of (seed, step), so an interrupted run resumes exactly from its state file
in the data folder. `--task` selects what is recorded; `--start` starts from the weights of another
checkpoint. With `--predict-frames` actions and pictures of the chunk's future
are denoised together, in the latents of that file's autoencoder
(`physis_lab.training.predicted_frames`).
`--kv clean` trains what clean KV shows online, on the same batches. The checkpoint holds the moving
average of the weights; a picture of the loss curve lies beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from physis_core.model.noise_schedule import schedule_of
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.config import TinyConfig, read_config
from physis_core.model.tiny.loading import load_frame_coder
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import KVMode, UserError
from physis_lab.tasks import TASKS
from physis_lab.tasks.episodes import EpisodeConfig, generate
from physis_lab.tasks.task import make_task
from physis_lab.training.dataset import EpisodeSet, SamplingConfig, SequenceBatch
from physis_lab.training.objective import Locator, clean_parts, history_errors, sequence_losses
from physis_lab.training.predicted_frames import PredictedFramesConfig, make_predicted_frames
from physis_lab.training.resumable import ResumableTrainer, RunConfig, run

VALIDATION_BATCHES = 4
PURE_NOISE_SHARE = 0.25
"""Share of sequences at pure noise with `levels: any`; every chunk starts there."""

FRAME_WEIGHT = 0.5
"""Of predicted pictures: many numbers, and it is the actions that move the robot."""

Levels = Literal["schedule", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(RunConfig):
    """Settings of a policy's training run.

    `levels`: noise levels of the model's own schedule, or any (for schedules of other lengths).
    The first `single_share` of the steps use batches of `single_rows` chunks without history:
    perception is learned faster that way, and noisy and clean KV do not differ there.
    `held_out`: episodes left out of training.
    `predict_frames`, `perception`: the files that autoencoder and image encoder came from, if any.
    """

    steps: int = 5000
    rows: int = 8
    average_decay: float = 0.998
    held_out: int = 2
    levels: Levels = "schedule"
    single_share: float = 0.0
    single_rows: int = 64
    predict_frames: str = ""
    perception: str = ""

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.single_rows < 1:
            raise UserError("single_rows", self.single_rows, "must be at least 1")
        if not 0.0 <= self.single_share <= 1.0:
            raise UserError("single_share", self.single_share, "must be from 0 to 1")


class Trainer(ResumableTrainer):
    """Trains a policy, and with it the probe that supervises its image encoder."""

    history_key = "losses"
    config: TrainConfig

    def __init__(
        self,
        train: TrainConfig,
        model: TinyConfig,
        sampling: SamplingConfig,
        data: EpisodeSet,
        held_out: EpisodeSet,
        coder: Autoencoder | None = None,
        perception: Mapping[str, Tensor] | None = None,
        start: Path | None = None,
    ) -> None:
        torch.manual_seed(train.seed)
        self.model, self.sampling, self.data, self.held_out = model, sampling, data, held_out
        self.policy = TinyNetwork(model)
        self.start = start
        if start is not None:
            begin_with(self.policy, start)
        self.locator = Locator(self.policy, *data.target_statistics())
        labels = ["action (joint std)²", "ball place (std)²"]
        if model.frame_tokens:
            labels.append("predicted latent²")
        if coder is not None:
            self.policy.autoencoder.load_state_dict(coder.state_dict())
            self.policy.autoencoder.requires_grad_(False)
        if perception is not None:
            self.policy.image.load_state_dict(perception)
            self.policy.image.requires_grad_(False)
        super().__init__(train, self.policy, labels, beside={"locator": self.locator})

    def losses(self, random: np.random.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows, sampling = self.config.rows, self.sampling
        if self.step < self.config.single_share * self.config.steps:
            rows, sampling = self.config.single_rows, replace(sampling, chunks=1)
        batch = self.data.sample(sampling, rows, random, augment=True)
        level = self._levels(rows, random)
        noise = self._noise(batch, random)
        rows, chunks, _, joints = batch.actions.shape
        wrong = [history_errors(rows, chunks, joints, random)]
        if batch.frames is not None:
            tokens, channels = batch.frames.shape[2:]
            off = history_errors(rows, chunks, tokens * channels, random)
            wrong.append(off.reshape(batch.frames.shape))
        losses = sequence_losses(self.policy, self.locator, batch, level, noise, wrong)
        parts = (losses.action, losses.locate)
        total = losses.total(FRAME_WEIGHT)
        return total, parts if losses.frame is None else (*parts, losses.frame)

    def _levels(self, rows: int, random: np.random.Generator) -> Tensor:
        """Noise level of each sequence, [B]."""
        schedule = schedule_of(self.model)
        if self.config.levels == "schedule":
            drawn = [schedule.level(int(d)) for d in random.integers(0, self.model.steps, rows)]
        else:
            even = 1.0 - random.random(rows)
            even[random.random(rows) < PURE_NOISE_SHARE] = 1.0
            drawn = [schedule.warped(float(x)) for x in even]
        return torch.tensor(drawn)

    def _noise(self, batch: SequenceBatch, random: np.random.Generator) -> list[Tensor]:
        """Standard normal noise for each part."""
        return [
            torch.from_numpy(random.standard_normal(tuple(x.shape), dtype=np.float32))
            for x in clean_parts(self.policy, batch)
        ]

    @torch.inference_mode()
    def validate(self) -> dict[str, float]:
        """Errors of the averaged weights on held-out episodes.

        `action_rad`: root mean square of the prediction from pure noise; `locate_m`: of the ball;
        `frame_latent`: of the latents of predicted pictures, from pure noise as well.
        """
        network = TinyNetwork(self.model)
        network.load_state_dict(self.average)
        action, locate, frame = 0.0, 0.0, 0.0
        for number in range(VALIDATION_BATCHES):
            random = np.random.default_rng([self.config.seed, 1 << 40, number])
            batch = self.held_out.sample(self.sampling, self.config.rows, random, augment=False)
            noise = self._noise(batch, random)
            losses = sequence_losses(
                network, self.locator, batch, torch.ones(self.config.rows), noise
            )
            action += losses.action.item() / VALIDATION_BATCHES
            locate += losses.locate.item() / VALIDATION_BATCHES
            if losses.frame is not None:
                frame += losses.frame.item() / VALIDATION_BATCHES
        joint_scale = float(np.sqrt(np.mean(np.square(self.model.position_std))))
        place_scale = float(self.locator.std.square().mean().sqrt())
        found = {
            "action_rad": math.sqrt(action) * joint_scale,
            "locate_m": math.sqrt(locate) * place_scale,
        }
        return {**found, "frame_latent": math.sqrt(frame)} if self.model.frame_tokens else found

    def write(self, out: Path, found: Mapping[str, float]) -> None:
        provenance = {
            "train": asdict(self.config),
            "start": None if self.start is None else self.start.name,
            "sampling": asdict(self.sampling),
            "data": {**self.data.source, "episodes": len(self.data.episodes)},
            "step": self.step,
            "held_out": dict(found),
        }
        checkpoint.save(out, self.model, self.average, provenance)

    def identity(self) -> str:
        return json.dumps(
            [asdict(self.config), asdict(self.model), asdict(self.sampling), self.data.source]
        )


def drawn_by(coder: Autoencoder, frame_times_s: tuple[float, ...]) -> dict[str, Any]:
    """Fields of a `TinyConfig` whose pictures are in the latents of this autoencoder."""
    return {
        "frame_tokens": len(frame_times_s) * coder.config.tokens,
        "frame_channels": coder.config.channels,
        "frame_times_s": frame_times_s,
        "frame_size": coder.config.frame_size,
        "cell_channels": coder.config.cell_channels,
        "autoencoder_width": coder.config.width,
    }


def perception_of(path: Path) -> dict[str, Tensor]:
    """Weights of a policy's image encoder. Raises UserError where it is no policy."""
    _, weights = checkpoint.load(path)
    prefix = "image."
    return {n.removeprefix(prefix): x for n, x in weights.items() if n.startswith(prefix)}


def begin_with(network: TinyNetwork, path: Path) -> None:
    """Load the weights of this checkpoint; statistics and names stay those of the new data.

    A network that predicts frames may start from a policy that does not: the weights that only
    frames use stay as they are.

    Raises:
        UserError: no checkpoint, or one of another shape.
    """
    _, weights = checkpoint.load(path)
    own = network.state_dict()
    if network.config.frame_tokens and "part_in.frame.weight" not in weights:
        # Positional embeddings of a chunk's tokens: those of the frames come last.
        weights["place"] = torch.cat((weights["place"], own["place"][len(weights["place"]) :]))
        weights = {n: x for n, x in own.items() if n not in weights} | weights
    here = {name: tuple(value.shape) for name, value in own.items()}
    there = {name: tuple(value.shape) for name, value in weights.items()}
    if here != there:
        other = min(name for name, _ in here.items() ^ there.items())
        raise UserError("start", str(path), f"is of another shape than the new model: {other}")
    network.load_state_dict(weights)


def main() -> int:
    defaults = TrainConfig()
    parser = argparse.ArgumentParser(description="Train physis-tiny on recorded episodes.")
    parser.add_argument("--data", type=Path, required=True, help="folder of episodes")
    parser.add_argument("--episodes", type=int, help="record missing episodes first")
    parser.add_argument(
        "--out", type=Path, required=True, help="checkpoint to write (.safetensors)"
    )
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--rows", type=int, default=defaults.rows, help="sequences per batch")
    parser.add_argument("--rate", type=float, default=defaults.learning_rate)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--reference", default="mean", help="reference of the actions: mean or joints"
    )
    parser.add_argument(
        "--predict-frames", type=Path, help="predict frames too, in the latents of this world model"
    )
    parser.add_argument(
        "--perception", type=Path, help="use the image encoder of this policy, frozen"
    )
    parser.add_argument("--task", default="follow", help=f"to record: {', '.join(TASKS)}")
    parser.add_argument("--start", type=Path, help="start from the weights of this checkpoint")
    parser.add_argument("--kv", choices=get_args(KVMode), default="noisy")
    parser.add_argument("--levels", choices=get_args(Levels), default=defaults.levels)
    parser.add_argument(
        "--single-share",
        type=float,
        default=0.0,
        help="share of steps, first, without history",
    )
    args = parser.parse_args()
    try:
        torch.set_num_threads(args.threads)
        train = TrainConfig(
            steps=args.steps,
            rows=args.rows,
            learning_rate=args.rate,
            seed=args.seed,
            levels=args.levels,
            single_share=args.single_share,
            predict_frames=str(args.predict_frames or ""),
            perception=str(args.perception or ""),
        )
        if args.predict_frames and make_task(args.task, 0).object_start is not None:
            raise UserError(
                "predict_frames", str(args.predict_frames), f"shows no object of {args.task}"
            )
        if args.episodes is not None:
            generate(EpisodeConfig(task=args.task), args.data, args.episodes)
        files = sorted(args.data.glob("episode_*.safetensors"))
        if len(files) <= train.held_out:
            raise UserError("data", str(args.data), f"needs over {train.held_out} episodes")
        coder = None if args.predict_frames is None else load_frame_coder(args.predict_frames)
        pictures = PredictedFramesConfig()
        predicted = (
            None
            if coder is None
            else make_predicted_frames(pictures, coder, files, args.data / "predicted")
        )
        data, held_out = (
            EpisodeSet(files[part], None if predicted is None else predicted[part])
            for part in (slice(None, -train.held_out), slice(-train.held_out, None))
        )
        mean, std = data.position_statistics()
        # Bounded below, so that noise of a joint that hardly moves is not amplified.
        std = np.maximum(std, 0.1 * std.max())
        if args.start is not None and coder is not None:
            # Keep the action normalisation of the policy that the run starts from.
            begun = read_config(args.start, TinyConfig)
            mean, std = np.array(begun.position_mean), np.array(begun.position_std)
        model = TinyConfig(
            joint_names=data.joint_names,
            camera_names=data.camera_names,
            position_mean=tuple(float(x) for x in mean),
            position_std=tuple(float(x) for x in std),
            image_size=data.image_size,
            lookahead_max_s=pictures.lookahead_max_s,
            action_reference=args.reference,
            kv=args.kv,
            **({} if coder is None else drawn_by(coder, pictures.frame_times_s)),
        )
        sampling = SamplingConfig(
            chunks=model.window_chunks,
            action_steps=model.action_steps,
            step_s=model.step_s,
            period_s=model.period_s,
            lookahead_max_s=model.lookahead_max_s,
        )
        seen = None if args.perception is None else perception_of(args.perception)
        trainer = Trainer(train, model, sampling, data, held_out, coder, seen, args.start)
        state_file = args.data / (args.out.name + ".state")
        run(trainer, args.out, state_file)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
