"""Sequences of chunks cut from recorded episodes (their format: `physis_lab.tasks.episodes`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from physis_core.types import Array, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """images [T, H, W, 3] are memory-mapped from the file."""

    images: Tensor
    joint_positions: Array
    target_positions: Array
    expert: Array
    latents: Tensor | None = None
    lookahead_s: Array | None = None
    """What each frame predicts, and its lookahead (`physis_lab.training.predicted_frames`)."""

    @property
    def moments(self) -> int:
        """Number of frames at which a chunk may start."""
        return len(self.images if self.latents is None else self.latents)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBatch:
    """B sequences of T chunks. `actions` [B, T, K, J] rad; `targets` [B, T, 3] m (the ball).

    `frames` [B, T, n, C]: latents of the pictures that each chunk predicts, where it does.
    """

    image: Tensor
    joint_positions: Tensor
    lookahead_s: Tensor
    actions: Tensor
    targets: Tensor
    frames: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How sequences are drawn. Some gaps differ from the period, like those of dropped chunks.

    Augmentation: per sequence a brightness change up to `brightness` and a contrast change up to
    `contrast` (shares of full scale), per pixel noise of `pixel_noise` (of 255), per joint reading
    noise of `joint_noise_rad`.
    """

    chunks: int = 8
    action_steps: int = 8
    step_s: float = 0.05
    period_s: float = 0.1
    lookahead_max_s: float = 0.6
    lookahead_jitter_s: float = 0.02
    other_gap_share: float = 0.1
    brightness: float = 0.06
    contrast: float = 0.15
    pixel_noise: float = 3.0
    joint_noise_rad: float = 0.002


class EpisodeSet:
    """All episodes of a folder, which must agree in rate, joints and image size.

    Args:
        predicted: one file of `physis_lab.training.predicted_frames` per episode, for a policy that
            denoises pictures of its future as well; lookaheads are then those that they were made
            for.

    Raises:
        UserError: no episodes, or files that do not fit together.
    """

    def __init__(self, files: Sequence[Path], predicted: Sequence[Path] | None = None) -> None:
        if not files:
            raise UserError("data", [], "no episode_*.safetensors files")
        if predicted is not None and len(predicted) != len(files):
            raise UserError("predicted", len(predicted), f"needs one per episode, {len(files)}")
        self.episodes: list[Episode] = []
        header: dict[str, Any] = {}
        for number, path in enumerate(files):
            latents, lookahead_s = _predicted(predicted[number]) if predicted else (None, None)
            with safe_open(path, framework="pt") as file:
                found = json.loads((file.metadata() or {}).get("physis", "{}"))
                common = {k: v for k, v in found.items() if k != "index"}
                if header and common != header:
                    raise UserError(
                        "data", str(path), "differs in its metadata from the files before"
                    )
                header = common
                self.episodes.append(
                    Episode(
                        images=file.get_tensor("images"),
                        joint_positions=file.get_tensor("joint_positions").numpy(),
                        target_positions=_places(file),
                        expert=file.get_tensor("expert").numpy(),
                        latents=latents,
                        lookahead_s=lookahead_s,
                    )
                )
        self.rate_hz = float(header["rate_hz"])
        self.expert_step_s = float(header["expert_step_s"])
        self.joint_names: tuple[str, ...] = tuple(header["joint_names"])
        self.camera_names: tuple[str, ...] = (str(header["camera"]),)
        self.image_size = (int(header["image_size"][0]), int(header["image_size"][1]))
        self.source = {k: header[k] for k in ("task", "seed", "rate_hz")}

    def position_statistics(self) -> tuple[Array, Array]:
        """Mean and standard deviation of the expert's last points, each [J] rad.

        Its first points are left out: states far off the path would widen the scale, and with it
        the noise, of every chunk.
        """
        every = np.concatenate([e.expert[::7, -1] for e in self.episodes])
        return every.mean(axis=0), every.std(axis=0)

    def target_statistics(self) -> tuple[Array, Array]:
        every = np.concatenate([e.target_positions for e in self.episodes])
        return every.mean(axis=0), every.std(axis=0)

    def sample(
        self, config: SamplingConfig, rows: int, random: np.random.Generator, *, augment: bool
    ) -> SequenceBatch:
        """Draw `rows` sequences; the same generator state gives the same batch."""
        image, joints, lookahead, actions, targets, predicted = [], [], [], [], [], []
        stride = max(1, round(config.period_s * self.rate_hz))
        for _ in range(rows):
            episode = self.episodes[random.integers(len(self.episodes))]
            gaps = np.full(config.chunks - 1, stride)
            odd = random.random(config.chunks - 1) < config.other_gap_share
            gaps[odd] = random.integers(1, 2 * stride + 1, size=int(odd.sum()))
            first = int(random.integers(episode.moments - int(gaps.sum())))
            frames = first + np.concatenate(([0], np.cumsum(gaps)))
            ahead_s = random.uniform(0.0, config.lookahead_max_s) + random.uniform(
                -config.lookahead_jitter_s, config.lookahead_jitter_s, size=config.chunks
            )
            ahead_s = np.clip(ahead_s, 0.0, config.lookahead_max_s)
            if episode.latents is not None and episode.lookahead_s is not None:
                ahead_s = episode.lookahead_s[frames].astype(np.float64)
                predicted.append(episode.latents[torch.from_numpy(frames)])
            image.append(episode.images[torch.from_numpy(frames)])
            joints.append(episode.joint_positions[frames])
            lookahead.append(ahead_s)
            actions.append(
                expert_actions(
                    episode.expert[frames],
                    ahead_s[:, None] + config.step_s * np.arange(config.action_steps),
                    self.expert_step_s,
                )
            )
            targets.append(episode.target_positions[frames])
        pixels = torch.stack(image).unsqueeze(2)
        positions = np.stack(joints).astype(np.float32)
        if augment:
            pixels = _vary(pixels, config, random)
            positions += random.normal(0.0, config.joint_noise_rad, positions.shape).astype("f4")
        return SequenceBatch(
            image=pixels,
            joint_positions=torch.from_numpy(positions),
            lookahead_s=torch.tensor(np.stack(lookahead), dtype=torch.float32).unsqueeze(-1),
            actions=torch.tensor(np.stack(actions), dtype=torch.float32),
            targets=torch.from_numpy(np.stack(targets)),
            frames=torch.stack(predicted).float() if predicted else None,
        )


def _predicted(path: Path) -> tuple[Tensor, Array]:
    with safe_open(path, framework="pt") as file:
        return file.get_tensor("latents"), file.get_tensor("lookahead_s").numpy()


def _places(file: Any) -> Array:
    """Target of the image probe: the ball [T, 3] m, or goal and object on the floor [T, 4] m."""
    marks: Array = file.get_tensor("target_positions").numpy()
    if "object_positions" not in file.keys():  # noqa: SIM118  this is no mapping
        return marks
    objects = file.get_tensor("object_positions").numpy()
    return np.concatenate([marks[:, :2], objects[:, :2]], axis=1)


def expert_actions(expert: Array, at_s: Array, step_s: float) -> Array:
    """expert [T, P, J], a point per `step_s` from the capture on -> [T, K, J] at `at_s` [T, K].

    Raises:
        UserError: a time past the last point.
    """
    place = at_s / step_s
    if place.max() > expert.shape[1] - 1:
        last_s = (expert.shape[1] - 1) * step_s
        raise UserError("lookahead_max_s", float(at_s.max()), f"episodes look {last_s} s ahead")
    low = np.minimum(place.astype(int), expert.shape[1] - 2)
    share = (place - low)[..., None]
    row = np.arange(len(expert))[:, None]
    out: Array = (1.0 - share) * expert[row, low] + share * expert[row, low + 1]
    return out


def _vary(pixels: Tensor, config: SamplingConfig, random: np.random.Generator) -> Tensor:
    """uint8 [B, T, 1, H, W, 3] -> float32 of the same scale."""
    shape = (len(pixels), *(1,) * (pixels.dim() - 1))
    contrast = 1.0 + random.uniform(-config.contrast, config.contrast, shape)
    offset = 255.0 * random.uniform(-config.brightness, config.brightness, shape)
    noise = random.standard_normal(tuple(pixels.shape), dtype=np.float32)
    varied = pixels.float() * torch.tensor(contrast, dtype=torch.float32)
    varied = varied + torch.tensor(offset, dtype=torch.float32)
    return (varied + config.pixel_noise * torch.from_numpy(noise)).clamp_(0.0, 255.0)
