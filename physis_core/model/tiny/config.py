"""Everything that fixes a physis-tiny network and what its numbers mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

from physis_core.model.kv import check_window
from physis_core.model.noise_schedule import FlowSchedule
from physis_core.model.tiny.autoencoder import AutoencoderConfig
from physis_core.types import KVMode, UserError

ActionReference = Literal["joints", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of denoised token of a chunk: `tokens` tokens of `channels` numbers each."""

    name: str
    tokens: int
    channels: int


class Transformer(Protocol):
    """What the configurations of the models of this folder have in common."""

    @property
    def dim(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def joints(self) -> int: ...
    @property
    def joint_names(self) -> tuple[str, ...]: ...
    @property
    def position_mean(self) -> tuple[float, ...]: ...
    @property
    def position_std(self) -> tuple[float, ...]: ...
    @property
    def step_s(self) -> float: ...
    @property
    def kv(self) -> KVMode: ...
    @property
    def window_chunks(self) -> int: ...
    @property
    def sink_chunks(self) -> int: ...
    @property
    def schedule(self) -> FlowSchedule: ...


def check_transformer(config: Transformer, counts: Iterable[str]) -> None:
    """Raises UserError where a field does not fit; `counts` names those that are at least 1."""
    for name in counts:
        if getattr(config, name) < 1:
            raise UserError(name, getattr(config, name), "must be at least 1")
    if config.dim % (2 * config.heads):
        raise UserError("dim", config.dim, f"must be an even multiple of heads = {config.heads}")
    check_names("joint_names", config.joint_names)
    for name in ("position_mean", "position_std"):
        if len(getattr(config, name)) != config.joints:
            raise UserError(name, getattr(config, name), f"needs one per joint, {config.joints}")
    if not min(config.position_std) > 0:
        raise UserError("position_std", config.position_std, "must be above 0")
    if not config.step_s > 0:
        raise UserError("step_s", config.step_s, "must be above 0")
    if config.kv not in get_args(KVMode):
        raise UserError("kv", config.kv, "noisy or clean")
    check_window(config.window_chunks, config.sink_chunks)
    config.schedule  # noqa: B018  its own checks name steps and shift


def check_names(field: str, names: Sequence[str]) -> None:
    if not names or len(set(names)) != len(names):
        raise UserError(field, names, "needs at least one name, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig:
    """Architecture and meaning of a physis-tiny checkpoint, kept as JSON in the checkpoint.

    A chunk is [condition tokens | action tokens | frame tokens]. Action token k stands for joint
    positions (rad, in the order of `joint_names`) at capture + lookahead_s + k * step_s, normalised
    by `position_mean` and `position_std`. `action_reference` says what the network's action output
    is added to: the observed joints (so that it predicts a displacement) or the mean.
    `image_size` is (height, width). `grid` x `grid` tokens of an image keep its layout and one more
    holds `keypoints` places that the network finds in it; `image_channels` is the first width of
    the convolutions.

    Frame tokens are latents of pictures of the chunk's own future. Where `frame_times_s` names
    them, picture n shows the camera `frame_times_s`[n] seconds after the first action point, and
    the checkpoint holds the autoencoder (`frame_size`, `cell_channels`, `autoencoder_width`) that
    draws it; `decode` False leaves pictures as latents.
    """

    joint_names: tuple[str, ...]
    camera_names: tuple[str, ...]
    position_mean: tuple[float, ...]
    position_std: tuple[float, ...]
    image_size: tuple[int, int] = (64, 64)
    action_steps: int = 8
    step_s: float = 0.05
    period_s: float = 0.1
    lookahead_max_s: float = 0.6
    action_reference: ActionReference = "mean"
    displacement_std: float = 1.0
    frame_tokens: int = 0
    frame_channels: int = 0
    frame_times_s: tuple[float, ...] = ()
    frame_size: tuple[int, int] = (96, 96)
    cell_channels: int = 16
    autoencoder_width: int = 32
    decode: bool = True
    steps: int = 4
    shift: float = 5.0
    blocks: int = 4
    dim: int = 96
    heads: int = 4
    ffn: int = 384
    grid: int = 2
    keypoints: int = 16
    image_channels: int = 16
    kv: KVMode = "noisy"
    window_chunks: int = 8
    sink_chunks: int = 0

    def __post_init__(self) -> None:
        check_transformer(
            self,
            (
                "action_steps",
                "blocks",
                "dim",
                "heads",
                "ffn",
                "grid",
                "keypoints",
                "image_channels",
            ),
        )
        check_names("camera_names", self.camera_names)
        for name in ("period_s", "lookahead_max_s", "displacement_std"):
            if not getattr(self, name) > 0:
                raise UserError(name, getattr(self, name), "must be above 0")
        if self.action_reference not in get_args(ActionReference):
            raise UserError("action_reference", self.action_reference, "joints or mean")
        side = 16 * self.grid
        if any(n < side or n % side for n in self.image_size):
            raise UserError("image_size", self.image_size, f"must be multiples of {side}")
        if (self.frame_tokens > 0) != (self.frame_channels > 0):
            raise UserError("frame_channels", self.frame_channels, "goes with frame_tokens")
        if self.frame_times_s:
            self._check_pictures()

    def _check_pictures(self) -> None:
        if min(self.frame_times_s) < 0:
            raise UserError("frame_times_s", self.frame_times_s, "must not be negative")
        coder = self.autoencoder
        for name, needed in (
            ("frame_tokens", len(self.frame_times_s) * coder.tokens),
            ("frame_channels", coder.channels),
        ):
            if getattr(self, name) != needed:
                raise UserError(name, getattr(self, name), f"these pictures have {needed}")

    @property
    def joints(self) -> int:
        return len(self.joint_names)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

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
    def draws(self) -> bool:
        """Whether a chunk leaves with pictures rather than with latents."""
        return bool(self.frame_times_s) and self.decode

    @property
    def parts(self) -> tuple[Part, ...]:
        """What is denoised, in token order."""
        action = Part(name="action", tokens=self.action_steps, channels=self.joints)
        if not self.frame_tokens:
            return (action,)
        return (action, Part(name="frame", tokens=self.frame_tokens, channels=self.frame_channels))

    @property
    def condition_tokens(self) -> int:
        """Per camera a grid and a keypoint token; one token for joints and lookahead."""
        return len(self.camera_names) * (self.grid * self.grid + 1) + 1

    @property
    def tokens(self) -> int:
        """Tokens of one chunk."""
        return self.condition_tokens + sum(part.tokens for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
