"""What fixes the networks of this folder, and what their numbers mean. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, get_args

from physis_core.model.config import build_config, check_schedule, check_window
from physis_core.model.header import read_header
from physis_core.types import KVMode, UserError

ActionReference = Literal["joints", "mean"]
CELL = 16
"""Pixels along one side of a cell."""
PATCH = 2
"""Cells along one side of a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kind of denoised token of a chunk: `tokens` tokens of `channels` numbers each."""

    name: str
    tokens: int
    channels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoencoderConfig:
    """`frame_size` is (height, width); `width` the number of channels of the first convolution."""

    FORMAT: ClassVar[str] = "physis-frames/1"

    frame_size: tuple[int, int] = (96, 96)
    cell_channels: int = 16
    width: int = 32

    def __post_init__(self) -> None:
        side = CELL * PATCH
        if any(n < side or n % side for n in self.frame_size):
            raise UserError("frame_size", self.frame_size, f"must be multiples of {side}")
        for name in ("cell_channels", "width"):
            if getattr(self, name) < 1:
                raise UserError(name, getattr(self, name), "must be at least 1")

    @property
    def cells(self) -> tuple[int, int]:
        return self.frame_size[0] // CELL, self.frame_size[1] // CELL

    @property
    def tokens(self) -> int:
        """Latent tokens of one frame."""
        rows, columns = self.cells
        return rows * columns // PATCH**2

    @property
    def channels(self) -> int:
        """Numbers of one latent token."""
        return self.cell_channels * PATCH**2


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """What policy and world model have in common. `FORMAT` names the kind of file that holds it.

    `position_mean` and `position_std` normalise joint positions (rad, in the order of
    `joint_names`); `step_s` lies between two action points or two frames. Pictures have
    `frame_size` (height, width), and an autoencoder of `cell_channels` and `autoencoder_width`
    draws them; `decode` False leaves them as latents.
    """

    FORMAT: ClassVar[str]

    joint_names: tuple[str, ...]
    position_mean: tuple[float, ...]
    position_std: tuple[float, ...]
    step_s: float = 0.05
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
    kv: KVMode = "noisy"
    window_chunks: int = 8
    sink_chunks: int = 0

    def check(self, counts: Iterable[str]) -> None:
        """Raises UserError where a field does not fit; `counts` names those that are at least 1."""
        for name in counts:
            if getattr(self, name) < 1:
                raise UserError(name, getattr(self, name), "must be at least 1")
        if self.dim % (2 * self.heads):
            raise UserError("dim", self.dim, f"must be an even multiple of heads = {self.heads}")
        check_names("joint_names", self.joint_names)
        for name in ("position_mean", "position_std"):
            if len(getattr(self, name)) != self.joints:
                raise UserError(name, getattr(self, name), f"needs one per joint, {self.joints}")
        if not min(self.position_std) > 0:
            raise UserError("position_std", self.position_std, "must be above 0")
        if not self.step_s > 0:
            raise UserError("step_s", self.step_s, "must be above 0")
        if self.kv not in get_args(KVMode):
            raise UserError("kv", self.kv, "noisy or clean")
        check_window(self.window_chunks, self.sink_chunks)
        check_schedule(self.steps, self.shift)

    @property
    def joints(self) -> int:
        return len(self.joint_names)

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def autoencoder(self) -> AutoencoderConfig:
        return AutoencoderConfig(
            frame_size=self.frame_size,
            cell_channels=self.cell_channels,
            width=self.autoencoder_width,
        )


def check_names(field: str, names: Sequence[str]) -> None:
    if not names or len(set(names)) != len(names):
        raise UserError(field, names, "needs at least one name, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig(TransformerConfig):
    """A policy. A chunk is [condition tokens | action tokens | frame tokens].

    Action token k stands for joint positions at capture + lookahead_s + k * step_s, normalised.
    `action_reference` says what the network's action output is added to: the observed joints (so
    that it predicts a displacement) or the mean. `image_size` is (height, width). `grid` x `grid`
    tokens of an image keep its layout and one more holds `keypoints` places that the network finds
    in it; `image_channels` is the first width of the convolutions.

    Frame tokens are latents of pictures of the chunk's own future. Where `frame_times_s` names
    them, picture n shows the camera `frame_times_s`[n] seconds after the first action point, and
    the checkpoint holds the autoencoder that draws it.
    """

    FORMAT: ClassVar[str] = "physis-tiny/1"

    camera_names: tuple[str, ...]
    image_size: tuple[int, int] = (64, 64)
    action_steps: int = 8
    period_s: float = 0.1
    lookahead_max_s: float = 0.6
    action_reference: ActionReference = "mean"
    displacement_std: float = 1.0
    frame_tokens: int = 0
    frame_channels: int = 0
    frame_times_s: tuple[float, ...] = ()
    grid: int = 2
    keypoints: int = 16
    image_channels: int = 16

    def __post_init__(self) -> None:
        counts = ("action_steps", "blocks", "dim", "heads", "ffn")
        self.check((*counts, "grid", "keypoints", "image_channels"))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig(TransformerConfig):
    """A world model. A chunk is [first frame's tokens | one action token per frame | frames'
    tokens].

    Action k is the joint positions commanded for the instant that frame k depicts; frames are
    `step_s` apart. `camera_fovy_deg` is the vertical field of view of the pictures that it was
    trained on.
    """

    FORMAT: ClassVar[str] = "physis-world/1"

    camera_fovy_deg: float
    frames: int = 3
    step_s: float = 1.0 / 30.0
    dim: int = 128
    ffn: int = 512
    window_chunks: int = 4

    def __post_init__(self) -> None:
        self.check(("frames", "blocks", "dim", "heads", "ffn"))
        if not 0 < self.camera_fovy_deg < 180:
            raise UserError("camera_fovy_deg", self.camera_fovy_deg, "must be between 0 and 180")
        self.autoencoder  # noqa: B018  its own checks name its fields

    @property
    def period_s(self) -> float:
        """Time that one chunk depicts."""
        return self.frames * self.step_s

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


Transformer = TypeVar("Transformer", bound=TransformerConfig)


def read_config(path: Path | str, kind: type[Transformer]) -> Transformer:
    """The configuration in a model's file. Raises UserError where the file is of another format."""
    return build_config(kind, read_header(path, kind.FORMAT)["config"])


def configured(
    kind: type[Transformer], values: Mapping[str, Any], checkpoint: str | None
) -> Transformer:
    """From `values` alone, or from a checkpoint, of which `values` may change only `decode`.

    Raises:
        UserError: a value does not fit, or the checkpoint fixes it.
    """
    if checkpoint is None:
        return build_config(kind, values)
    read = read_config(checkpoint, kind)
    for name, value in values.items():
        field = f"model.config.{name}"
        if name != "decode":
            raise UserError(field, value, f"{checkpoint} fixes its own configuration")
        if not isinstance(value, bool):
            raise UserError(field, value, "must be of type bool")
        if isinstance(read, TinyConfig) and not read.frame_times_s:
            raise UserError(field, value, f"{checkpoint} draws no pictures")
        # The only field that the weights do not fix.
        read = replace(read, decode=value)
    return read
