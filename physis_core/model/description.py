"""What a model says of itself: plain data that a robot's host reads without torch.

Each family fills a `ModelDescription` from the metadata of the model's file. The nodes learn
cameras, joints, sizes, period and outputs from it, and from nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from physis_core.types import KVMode, StageGraph, UserError

IMAGE = "image"
"""Observation of a policy: uint8 [cameras, height, width, 3], in the order of `cameras`."""
JOINT_POSITIONS = "joint_positions"
"""Observation of a policy: float32 [joints] in rad, in the order of `joints`."""
LOOKAHEAD = "lookahead_s"
"""Observation of a policy: float32 [1], seconds from capture to the first action point."""
ACTION = "action"
"""Output of a policy: [steps, joints] joint positions in rad."""
COMMANDS = "actions"
"""Observation of a world model: float32 [steps, joints] commanded joint positions in rad."""
FRAMES = "frames"
"""Output of a model that draws: uint8 [count, height, width, 3]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraInput:
    """An image that the model needs. `height` and `width` are in pixels."""

    name: str
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionOutput:
    """The output `action`: point k applies at capture + lookahead + k * `step_s`.

    `lookahead_max_s` is the longest lookahead that the model was trained for.
    """

    steps: int
    step_s: float
    lookahead_max_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInput:
    """The observation `actions` of a world model: one command per frame, `step_s` apart."""

    steps: int
    step_s: float


FirstFrame = Literal["required", "optional", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameOutput:
    """The output `frames`. `fovy_deg` is the vertical field of view, where the model names it.

    `step_s` is the time between frames; None: that between the commands. `first` says whether a
    world begins with a first frame that is given.
    """

    count: int
    height: int
    width: int
    fovy_deg: float | None = None
    step_s: float | None = None
    first: FirstFrame = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """`period_s` is the time between chunks that the model was made for; None: it names none.

    A policy has `actions`: it takes `image`, `joint_positions` and `lookahead_s`, and gives
    `action`. A world model has `frames`: it takes `actions` where it has `commands`, a prompt where
    `takes_prompt`, and a first frame, and gives `frames`. A model with neither runs in the engine,
    but no node can use it. `packages` are the Python modules that the family needs to run.
    `missing`: what is not in its files or does not fit, a line each. `note`: what a reader should
    know of how it is run.
    """

    family: str
    steps: int
    blocks: int
    kv: KVMode
    window_chunks: int
    sink_chunks: int
    period_s: float | None = None
    cameras: tuple[CameraInput, ...] = ()
    joints: tuple[str, ...] = ()
    actions: ActionOutput | None = None
    commands: CommandInput | None = None
    frames: FrameOutput | None = None
    takes_prompt: bool = False
    packages: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    note: str = ""

    @property
    def graph(self) -> StageGraph:
        return StageGraph(steps=self.steps, blocks=self.blocks, kv=self.kv)

    @property
    def purpose(self) -> str:
        """In a few words what the model is for."""
        if self.actions is not None:
            return "policy that draws its future" if self.frames is not None else "policy"
        if self.frames is not None:
            return "world model"
        return "model for the engine alone"

    @property
    def camera_names(self) -> tuple[str, ...]:
        return tuple(camera.name for camera in self.cameras)

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of every camera's image; (0, 0) where the model has no camera.

        Raises:
            UserError: the cameras differ in size; the observation `image` is one tensor.
        """
        sizes = {(camera.height, camera.width) for camera in self.cameras}
        if len(sizes) > 1:
            shown = [f"{c.name} {c.width}x{c.height}" for c in self.cameras]
            raise UserError("cameras", shown, "all cameras of a model must have one size")
        return sizes.pop() if sizes else (0, 0)


def check_names(
    field: str, needed: tuple[str, ...], present: tuple[str, ...], *, where: str
) -> None:
    """Raises UserError naming every needed camera or joint that is not among `present`."""
    missing = [name for name in needed if name not in present]
    if missing:
        raise UserError(
            field, ", ".join(missing), f"the model needs this; {where} has {', '.join(present)}"
        )
