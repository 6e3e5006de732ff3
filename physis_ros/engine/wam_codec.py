"""A world action model's tensors <-> images and joints of a robot, by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from physis_core.model.description import (
    ACTION,
    IMAGE,
    JOINT_POSITIONS,
    LOOKAHEAD,
    ModelDescription,
)
from physis_core.types import Array, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class WamContract:
    """What the model's numbers mean. `image_size` is (height, width)."""

    camera_names: tuple[str, ...]
    joint_names: tuple[str, ...]
    image_size: tuple[int, int]
    action_steps: int
    step_s: float
    lookahead_max_s: float


def wam_contract(model: str, described: ModelDescription) -> WamContract:
    """Raise UserError if the model gives no actions for named joints."""
    if described.actions is None or not described.joints:
        raise UserError("model", model, f"is a {described.purpose}: it gives no actions for joints")
    return WamContract(
        camera_names=described.camera_names,
        joint_names=described.joints,
        image_size=described.image_size,
        action_steps=described.actions.steps,
        step_s=described.actions.step_s,
        lookahead_max_s=described.actions.lookahead_max_s,
    )


def observation_tensors(
    contract: WamContract,
    *,
    images: Mapping[str, npt.NDArray[np.uint8]],
    joint_names: Sequence[str],
    positions: Sequence[float],
    lookahead_s: float,
) -> dict[str, Array]:
    """`image` uint8[cameras, H, W, 3], `joint_positions` float32[joints], `lookahead_s` float32[1].

    Cameras and joints are found by name.

    Raises:
        UserError: one is missing, has another size, or is not finite.
    """
    height, width = contract.image_size
    stack = []
    for name in contract.camera_names:
        image = images.get(name)
        if image is None:
            raise UserError("camera_names", sorted(images), f"camera {name!r} is missing")
        if image.shape != (height, width, 3):
            raise UserError(
                f"images[{name}]", list(image.shape), f"the model takes {[height, width, 3]}"
            )
        stack.append(image)
    if len(positions) != len(joint_names):
        raise UserError(
            "positions", len(positions), f"{len(joint_names)} joint names need as many positions"
        )
    by_name = dict(zip(joint_names, positions))
    joints = np.empty(len(contract.joint_names), dtype=np.float32)
    for index, name in enumerate(contract.joint_names):
        position = by_name.get(name)
        if position is None:
            raise UserError("joint_names", list(joint_names), f"joint {name!r} is missing")
        if not np.isfinite(position):
            raise UserError(f"positions[{name}]", position, "must be finite")
        joints[index] = position
    return {
        IMAGE: np.stack(stack) if stack else np.empty((0, height, width, 3), dtype=np.uint8),
        JOINT_POSITIONS: joints,
        LOOKAHEAD: np.array([lookahead_s], dtype=np.float32),
    }


def action_positions(contract: WamContract, outputs: Mapping[str, Array]) -> Array:
    """Joint positions float64[steps, joints] in rad.

    Raises:
        UserError: no action, another shape, or a number that is not finite.
    """
    action = outputs.get(ACTION)
    wanted = (contract.action_steps, len(contract.joint_names))
    if action is None:
        raise UserError("outputs", sorted(outputs), "the model gave no action")
    if action.shape != wanted:
        raise UserError("action", list(action.shape), f"must be {list(wanted)}")
    positions = np.asarray(action, dtype=np.float64)
    if not np.isfinite(positions).all():
        step, joint = np.argwhere(~np.isfinite(positions))[0]
        raise UserError(
            f"action[{step}, {contract.joint_names[joint]}]",
            float(positions[step, joint]),
            "must be finite",
        )
    return positions
