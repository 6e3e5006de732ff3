"""A world model's tensors <-> what a simulator says, by joint name. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from physis_core.model.description import FirstFrame, ModelDescription
from physis_core.types import Array, UserError

RATE_TOLERANCE = 0.01
"""Share by which a requested frame rate may differ from that of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldContract:
    """What the model's numbers mean. `frame_size` is (height, width).

    `joint_names` are those whose commands steer the world; empty: none do. `camera_fovy_deg` is
    None where nothing is known of the camera. `first_frame`: whether a world begins with one.
    """

    joint_names: tuple[str, ...]
    frame_size: tuple[int, int]
    frames: int
    step_s: float
    camera_fovy_deg: float | None
    first_frame: FirstFrame = "required"
    takes_prompt: bool = False

    @property
    def waits_for_reset(self) -> bool:
        """Whether a world must be given a first frame, or where its joints are."""
        return self.first_frame == "required" or bool(self.joint_names)

    @property
    def step_ns(self) -> int:
        return round(self.step_s * 1e9)

    @property
    def chunk_ns(self) -> int:
        """Time that one chunk depicts."""
        return round(self.frames * self.step_s * 1e9)

    @property
    def frame_hz(self) -> float:
        return 1.0 / self.step_s

    def depicted_ns(self, first_ns: int) -> list[int]:
        """What the frames of a chunk depict whose first one depicts `first_ns`."""
        return [first_ns + round(k * self.step_s * 1e9) for k in range(self.frames)]

    @property
    def focal_pixel(self) -> float:
        """Of a pinhole without distortion, from the vertical field of view; 0: unknown."""
        if self.camera_fovy_deg is None:
            return 0.0
        return 0.5 * self.frame_size[0] / math.tan(math.radians(0.5 * self.camera_fovy_deg))


def world_contract(model: str, described: ModelDescription) -> WorldContract:
    """Raises UserError where the model draws no world, or its files lack a part of it."""
    commands, frames = described.commands, described.frames
    if frames is None or described.actions is not None:
        why = described.missing[0] if described.missing else f"is a {described.purpose}"
        raise UserError("model", model, f"{why}: it draws no world")
    if commands is not None and commands.steps != frames.count:
        raise UserError("model", model, f"{commands.steps} commands for {frames.count} frames")
    step_s = frames.step_s if commands is None else commands.step_s
    if step_s is None:
        raise UserError("model", model, "does not name the time between its frames")
    return WorldContract(
        joint_names=described.joints if commands is not None else (),
        frame_size=(frames.height, frames.width),
        frames=frames.count,
        step_s=step_s,
        camera_fovy_deg=frames.fovy_deg,
        first_frame=frames.first,
        takes_prompt=described.takes_prompt,
    )


def check_rate(contract: WorldContract, frame_hz: float) -> None:
    """Raises UserError where a requested rate (0: none) is not the one that the model draws at."""
    if frame_hz and abs(frame_hz / contract.frame_hz - 1.0) > RATE_TOLERANCE:
        raise UserError(
            "frame_hz", frame_hz, f"the model makes {contract.frame_hz:g} frames a second"
        )


def start_positions(
    contract: WorldContract, joint_names: Sequence[str], positions: Sequence[float]
) -> Array:
    """Where the joints are in a first frame, float32 [J] in the model's order.

    Raises:
        UserError: a joint is missing or named twice, or a position is not finite.
    """
    return np.asarray(_rows(contract, joint_names, positions, rows=1)[0])


def step_actions(
    contract: WorldContract, joint_names: Sequence[str], positions: Sequence[float]
) -> Array:
    """Actions of one chunk, float32 [frames, J], from row-major positions [frames, joints].

    Raises:
        UserError: as `start_positions`, and where there is not one row for each frame.
    """
    return _rows(contract, joint_names, positions, rows=contract.frames)


def checked_first_frame(
    contract: WorldContract, rgb: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """Raises UserError where the frame is not of the model's size: it is not resized in silence,
    because cropping would move what the world is to hold."""
    height, width = contract.frame_size
    if rgb.shape[:2] != (height, width):
        raise UserError(
            "first_frame.size",
            f"{rgb.shape[1]}x{rgb.shape[0]}",
            f"the model takes {width}x{height} pixels",
        )
    return rgb


def _rows(
    contract: WorldContract, joint_names: Sequence[str], positions: Sequence[float], *, rows: int
) -> Array:
    names = list(joint_names)
    for name in contract.joint_names:
        if names.count(name) != 1:
            how = "is missing" if name not in names else "is named twice"
            raise UserError("joint_names", names, f"joint {name!r} {how}")
    if len(positions) != rows * len(names):
        raise UserError(
            "positions",
            len(positions),
            f"{rows} x {len(names)} joint names need {rows * len(names)}",
        )
    given = np.asarray(positions, dtype=np.float64).reshape(rows, len(names))
    ordered = given[:, [names.index(name) for name in contract.joint_names]]
    fits = np.abs(ordered) <= np.finfo(np.float32).max  # false for NaN, too
    if not fits.all():
        row, joint = np.argwhere(~fits)[0]
        raise UserError(
            f"positions[{row}, {contract.joint_names[joint]}]",
            float(ordered[row, joint]),
            "must be finite",
        )
    out: Array = ordered.astype(np.float32)
    return out
