"""What fixes a Wan transformer and how it is staged, and what follows from it in bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from physis_core.model.kv import check_window, window_bytes
from physis_core.model.noise_schedule import FlowSchedule
from physis_core.model.protocol import ModelSpec, TensorSpec
from physis_core.model.rope import split_pairs_3d
from physis_core.types import KVMode, UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
WanObservation = Literal["none", "frames"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WanConfig:
    """Defaults are Wan2.1 1.3B at 480 x 832 in chunks of one latent.

    `latents` is the number of latent frames of a chunk. `observation: frames` lets a chunk be given
    some of its latent frames: they stay as they are, at timestep 0, while the others are denoised
    (first frame of a clip, frames that a camera has seen). With `none` the text alone steers.
    """

    heads: int = 12
    head_dim: int = 128
    ffn: int = 8960
    blocks: int = 30
    channels: int = 16
    text_dim: int = 4096
    text_tokens: int = 512
    freq_dim: int = 256
    patch: tuple[int, int, int] = (1, 2, 2)
    cross_attn_norm: bool = True
    eps: float = 1e-6
    latents: int = 1
    height: int = 60
    width: int = 104
    observation: WanObservation = "none"
    steps: int = 4
    shift: float = 5.0
    kv: KVMode = "noisy"
    window_chunks: int = 21
    sink_chunks: int = 0
    dtype: str = "bfloat16"
    seed: int = 0
    """Of the random weights that stand in where no checkpoint is given."""

    def __post_init__(self) -> None:
        counts = ("heads", "ffn", "blocks", "channels", "text_dim", "text_tokens", "latents")
        for name in counts:
            if getattr(self, name) < 1:
                raise UserError(name, getattr(self, name), "must be at least 1")
        if self.freq_dim < 2 or self.freq_dim % 2:
            raise UserError("freq_dim", self.freq_dim, "must be even and at least 2")
        if len(self.patch) != 3 or min(self.patch) < 1:
            raise UserError("patch", self.patch, "must be three sizes of at least 1")
        for name, part in zip(("latents", "height", "width"), self.patch, strict=True):
            value = getattr(self, name)
            if value < part or value % part:
                raise UserError(name, value, f"must be a multiple of the patch size {part}")
        for name, choices in (
            ("observation", get_args(WanObservation)),
            ("kv", get_args(KVMode)),
            ("dtype", tuple(DTYPES)),
        ):
            if getattr(self, name) not in choices:
                raise UserError(name, getattr(self, name), f"one of {', '.join(choices)}")
        if not self.eps > 0:
            raise UserError("eps", self.eps, "must be above 0")
        split_pairs_3d(self.head_dim)
        check_window(self.window_chunks, self.sink_chunks)
        self.schedule  # noqa: B018  its own checks name steps and shift

    @property
    def dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tokens of a chunk along frame, height and width."""
        sizes = (self.latents, self.height, self.width)
        frame, height, width = (n // p for n, p in zip(sizes, self.patch, strict=True))
        return frame, height, width

    @property
    def tokens(self) -> int:
        return math.prod(self.grid)

    @property
    def token_frames(self) -> int:
        """Timesteps that a chunk has: one a token frame, or one in all where they cannot differ."""
        return self.grid[0] if self.observation == "frames" else 1

    @property
    def schedule(self) -> FlowSchedule:
        return FlowSchedule(steps=self.steps, shift=self.shift)

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


def wan_spec(config: WanConfig) -> ModelSpec:
    """Needs neither weights nor diffusers."""
    dtype = config.torch_dtype
    x = TensorSpec(shape=(config.channels, config.latents, config.height, config.width))
    known = TensorSpec(shape=(config.latents,))
    given = (known,) if config.observation == "frames" else ()
    return ModelSpec(
        name="wan",
        steps=config.steps,
        blocks=config.blocks,
        kv=config.kv,
        window_chunks=config.window_chunks,
        sink_chunks=config.sink_chunks,
        latent=(x, *given),
        hidden=(
            TensorSpec(shape=(config.tokens, config.dim), dtype=dtype),
            TensorSpec(shape=(config.token_frames, 6, config.dim), dtype=dtype),
            TensorSpec(shape=(config.token_frames, config.dim), dtype=dtype),
            x,
            *given,
        ),
        observation={"latent": x, "known": known} if given else {},
        outputs={"latent": x},
        kv_bytes=window_bytes(
            window_chunks=config.window_chunks,
            tokens=config.tokens,
            heads=config.heads,
            head_dim=config.head_dim,
            dtype=dtype,
        ),
        block_weight_bytes=(_block_bytes(config),) * config.blocks,
        shared_weight_bytes=_shared_bytes(config),
    )


def _block_bytes(config: WanConfig) -> int:
    """Norms and the modulation table stay in float32 (`keeps_float32`)."""
    dim, ffn = config.dim, config.ffn
    attentions = 2 * (4 * (dim * dim + dim) + 2 * dim)
    feed_forward = dim * ffn + ffn + ffn * dim + dim
    exact = 6 * dim + (2 * dim if config.cross_attn_norm else 0)
    return (attentions + feed_forward) * config.torch_dtype.itemsize + exact * _exact(config)


def _shared_bytes(config: WanConfig) -> int:
    dim = config.dim
    patch = config.channels * math.prod(config.patch)
    moved = (
        (patch * dim + dim)
        + (config.text_dim * dim + dim + dim * dim + dim)
        + (6 * dim * dim + 6 * dim)
        + (dim * patch + patch)
    )
    exact = config.freq_dim * dim + dim + dim * dim + dim + 2 * dim
    return moved * config.torch_dtype.itemsize + exact * _exact(config)


def _exact(config: WanConfig) -> int:
    return max(config.torch_dtype.itemsize, torch.float32.itemsize)


def keeps_float32(name: str) -> bool:
    """Weights that lose too much in 16 bits, by their diffusers name: what diffusers keeps, too."""
    kept = ("time_embedder", "scale_shift_table", "norm2")
    return any(part in kept for part in name.split("."))
