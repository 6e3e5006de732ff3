"""Sequences of latent chunks for the world model, cut from rendered frames."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.types import Array
from physis_lab.training.frame_set import FrameSet

_ENCODE_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBatch:
    """B sequences of T chunks of F frames, n = F * tokens of a frame.

    `clean` [B, T, n, C]: the targets; `shown` [B, T, n, C]: the inputs before noise, with errors in
    some sequences; `actions` [B, T, F, J] rad; `first` [B, tokens, C].
    """

    clean: Tensor
    shown: Tensor
    actions: Tensor
    first: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSampling:
    """How sequences are drawn.

    In `wander_share` of the sequences the shown latents carry a slowly varying error with a spread
    up to `wander_max`; in `other_share` all but the newest chunks show another moment. So the model
    does not learn to trust earlier chunks, which a roll-out generates itself, more than its
    actions. `gap_share` of the steps between chunks skip time, as after a dropped chunk.
    `first_noise` is added to the first frame's latents.
    """

    chunks: int = 4
    wander_share: float = 0.5
    wander_max: float = 1.0
    wander_keep: float = 0.9
    other_share: float = 0.25
    gap_share: float = 0.05
    first_noise: float = 0.05


class LatentSet:
    """Latents of all frames in memory, half precision.

    Args:
        cache: file of the latents; written again when the autoencoder differs.
    """

    def __init__(self, data: FrameSet, autoencoder: Autoencoder, cache: Path) -> None:
        self.data = data
        self.latents = encoded(data, autoencoder, cache)
        self._tokens = autoencoder.config.tokens

    def position_statistics(self) -> tuple[Array, Array]:
        every = np.concatenate([f.joint_positions for f in self.data.files])
        return every.mean(axis=0), every.std(axis=0)

    def sample(
        self, config: WorldSampling, rows: int, frames: int, random: np.random.Generator
    ) -> WorldBatch:
        """Draw `rows` sequences; the same generator state gives the same batch."""
        clean, shown, actions, first = [], [], [], []
        for _ in range(rows):
            number = int(random.integers(len(self.latents)))
            latents, file = self.latents[number], self.data.files[number]
            at, here = self._moments(config, file.scene, frames, random)
            clean.append(latents[at])
            moments = at
            if random.random() < config.other_share:
                # All but the last chunk or two show the arm of another moment of this scene.
                moments = at.copy()
                wrong_frames = frames * int(random.integers(1, config.chunks))
                moments[:wrong_frames] = random.integers(here[0], here[1], size=wrong_frames)
            shown.append(latents[moments])
            actions.append(file.joint_positions[at])
            first.append(latents[int(random.integers(here[0], here[1]))])
        shape = (rows, config.chunks, frames * self._tokens, -1)
        whole = torch.stack(clean).float().reshape(shape)
        wrong = torch.stack(shown).float().reshape(shape)
        wrong += wandering(config, tuple(whole.shape), random)
        start = torch.stack(first).float()
        noise = random.standard_normal(tuple(start.shape), dtype=np.float32)
        return WorldBatch(
            clean=whole,
            shown=wrong,
            actions=torch.from_numpy(np.stack(actions)).reshape(rows, config.chunks, frames, -1),
            first=start + config.first_noise * torch.from_numpy(noise),
        )

    @staticmethod
    def _moments(
        config: WorldSampling, scene: Array, frames: int, random: np.random.Generator
    ) -> tuple[Array, tuple[int, int]]:
        """Frame numbers of one sequence [T * F], and the scene's first frame and end."""
        needed = config.chunks * frames
        gaps = np.zeros(config.chunks, dtype=np.int64)
        odd = random.random(config.chunks - 1) < config.gap_share
        gaps[1:][odd] = frames * random.integers(1, 3, size=int(odd.sum()))
        offsets = (np.cumsum(gaps)[:, None] + np.arange(needed).reshape(-1, frames)).reshape(-1)
        span = int(offsets[-1]) + 1
        while True:
            picked = scene[int(random.integers(len(scene)))]
            inside = np.flatnonzero(scene == picked)
            if len(inside) >= span:
                start = int(inside[0]) + int(random.integers(len(inside) - span + 1))
                return start + offsets, (int(inside[0]), int(inside[-1]) + 1)


def wandering(config: WorldSampling, shape: Sequence[int], random: np.random.Generator) -> Tensor:
    """Errors [B, T, n, C] that vary slowly from chunk to chunk; zero in some sequences."""
    rows, chunks = shape[:2]
    spread = config.wander_max * random.random((rows, 1, 1, 1), dtype=np.float32)
    spread *= random.random((rows, 1, 1, 1)) < config.wander_share
    step = random.standard_normal(tuple(shape), dtype=np.float32)
    error = np.empty_like(step)
    error[:, 0] = step[:, 0]
    fresh = float(np.sqrt(1.0 - config.wander_keep**2))
    for chunk in range(1, chunks):
        error[:, chunk] = config.wander_keep * error[:, chunk - 1] + fresh * step[:, chunk]
    return torch.from_numpy(spread * error)


@torch.inference_mode()
def encoded(data: FrameSet, autoencoder: Autoencoder, cache: Path) -> list[Tensor]:
    """Latents float16 [T, tokens, channels] of every file."""
    mark = weights_mark(autoencoder)
    if cache.exists():
        with safe_open(cache, framework="pt") as file:
            known = (file.metadata() or {}).get("autoencoder") == mark
            if known and len(file.keys()) == len(data.files):
                return [file.get_tensor(f"{n:05d}") for n in range(len(data.files))]
    out = []
    for number, file in enumerate(data.files):
        starts = range(0, len(file.frames), _ENCODE_ROWS)
        parts = [autoencoder.encode(file.frames[t : t + _ENCODE_ROWS]).half() for t in starts]
        out.append(torch.cat(parts))
        if (number + 1) % 8 == 0:
            print(f"latents {number + 1}/{len(data.files)}", file=sys.stderr, flush=True)
    partial = cache.with_name(cache.name + ".partial")
    save_file({f"{n:05d}": x for n, x in enumerate(out)}, partial, metadata={"autoencoder": mark})
    partial.replace(cache)
    return [x.clone() for x in out]


def weights_mark(autoencoder: Autoencoder) -> str:
    """A digest of the weights."""
    digest = hashlib.sha256()
    for name, value in sorted(autoencoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()
