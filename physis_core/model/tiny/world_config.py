"""Everything that fixes a physis-tiny world model and what its numbers mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from physis_core.model.noise_schedule import FlowSchedule
from physis_core.model.tiny.autoencoder import AutoencoderConfig
from physis_core.model.tiny.config import check_transformer
from physis_core.types import KVMode, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    """Architecture and meaning of an action-conditioned world model, kept as JSON in its file.

    A chunk is [first frame's tokens | one action token per frame | frames' tokens]. Action k is the
    joint positions (rad, in the order of `joint_names`) commanded for the instant that frame k
    depicts; frames are `step_s` apart. `frame_size` is (height, width); `camera_fovy_deg` the
    vertical field of view of the pictures that it was trained on. `decode` False leaves frames as
    latents: for measurements alone.
    """

    joint_names: tuple[str, ...]
    position_mean: tuple[float, ...]
    position_std: tuple[float, ...]
    camera_fovy_deg: float
    frame_size: tuple[int, int] = (96, 96)
    cell_channels: int = 16
    autoencoder_width: int = 32
    frames: int = 3
    step_s: float = 1.0 / 30.0
    steps: int = 4
    shift: float = 5.0
    blocks: int = 4
    dim: int = 128
    heads: int = 4
    ffn: int = 512
    kv: KVMode = "noisy"
    window_chunks: int = 4
    sink_chunks: int = 0
    decode: bool = True

    def __post_init__(self) -> None:
        check_transformer(self, ("frames", "blocks", "dim", "heads", "ffn"))
        if not 0 < self.camera_fovy_deg < 180:
            raise UserError("camera_fovy_deg", self.camera_fovy_deg, "must be between 0 and 180")
        self.autoencoder  # noqa: B018  its own checks name its fields

    @property
    def joints(self) -> int:
        return len(self.joint_names)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def period_s(self) -> float:
        """Time that one chunk depicts."""
        return self.frames * self.step_s

    @property
    def schedule(self) -> FlowSchedule:
        return FlowSchedule(steps=self.steps, shift=self.shift)

    @property
    def autoencoder(self) -> AutoencoderConfig:
        return AutoencoderConfig(
            frame_size=self.frame_size,
            cell_channels=self.cell_channels,
            width=self.autoencoder_width,
        )

    @property
    def frame_tokens(self) -> int:
        """Latent tokens of one frame."""
        return self.autoencoder.tokens

    @property
    def channels(self) -> int:
        return self.autoencoder.channels

    @property
    def condition_tokens(self) -> int:
        return self.frame_tokens + self.frames

    @property
    def denoised_tokens(self) -> int:
        return self.frames * self.frame_tokens

    @property
    def tokens(self) -> int:
        """Tokens of one chunk."""
        return self.condition_tokens + self.denoised_tokens

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
