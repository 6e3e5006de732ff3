"""What fixes a Wan transformer, and how it is staged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from physis_core.model.config import check_schedule, check_window, split_pairs_3d
from physis_core.types import KVMode, UserError

DTYPES = ("float32", "bfloat16", "float64")
WanObservation = Literal["none", "frames", "first_frame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WanConfig:
    """Defaults are Wan2.1 1.3B at 480 x 832 in chunks of one latent.

    `latents` is the number of latent frames of a chunk. `observation: frames` lets a chunk be given
    some of its latent frames: they stay as they are, at timestep 0, while the others are denoised
    (frames that a camera has seen). With `first_frame` only the stream's first latent frame is
    given, or none. With `none` the text alone steers.

    `timesteps` are those of steps 0 .. D-1 (1000: pure noise) for a checkpoint that was trained at
    others than `shift` gives. `action_joints`: the joints whose commands steer the chunk, by an MLP
    of `action_hidden` onto the time embedding; empty: none do. `decode`: the VAE is the last stage.
    `fps` are the frames a second that the checkpoint was trained at; `camera_fovy_deg` is 0 where
    nothing is known of the camera.
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
    timesteps: tuple[float, ...] = ()
    kv: KVMode = "noisy"
    window_chunks: int = 21
    sink_chunks: int = 0
    dtype: str = "bfloat16"
    decode: bool = False
    frames_per_latent: int = 4
    pixels_per_cell: int = 8
    fps: float = 16.0
    camera_fovy_deg: float = 0.0
    action_joints: tuple[str, ...] = ()
    action_hidden: int = 0
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
            ("dtype", DTYPES),
        ):
            if getattr(self, name) not in choices:
                raise UserError(name, getattr(self, name), f"one of {', '.join(choices)}")
        for name in ("eps", "fps"):
            if not getattr(self, name) > 0:
                raise UserError(name, getattr(self, name), "must be above 0")
        if not 0 <= self.camera_fovy_deg < 180:
            raise UserError("camera_fovy_deg", self.camera_fovy_deg, "must be in 0..180")
        if self.action_joints and self.action_hidden < 1:
            raise UserError("action_hidden", self.action_hidden, "must be at least 1")
        if self.timesteps:
            falling = all(a > b for a, b in zip(self.timesteps, self.timesteps[1:]))
            if len(self.timesteps) != self.steps or not falling or self.timesteps[-1] <= 0:
                raise UserError(
                    "timesteps", list(self.timesteps), f"needs {self.steps} falling values above 0"
                )
        split_pairs_3d(self.head_dim)
        check_window(self.window_chunks, self.sink_chunks)
        check_schedule(self.steps, self.shift)

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
        differ = self.observation != "none" or bool(self.action_joints)
        return self.grid[0] if differ else 1

    @property
    def frames(self) -> int:
        """Decoded frames of a chunk."""
        return self.latents * self.frames_per_latent

    @property
    def stages_per_step(self) -> int:
        """The transformer's blocks, and the decoder."""
        return self.blocks + self.decode
