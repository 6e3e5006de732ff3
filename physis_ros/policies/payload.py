"""Observations <-> requests, replies <-> joint positions, as a contract says. Pure.

Both ends of the wire use it: the client builds requests and reads replies, our server the other way
round.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.model.image_input import resize_rgb
from physis_core.types import Array, UserError
from physis_ros.robot.policy_contract import (
    ActionValues,
    ImageKey,
    Key,
    PolicyContract,
    key_path,
)

Rgb = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotInputs:
    """What a policy sees: rgb images by camera, joint positions in rad or m by name."""

    images: Mapping[str, Rgb]
    joints: Mapping[str, float]
    instruction: str = ""


def request_of(contract: PolicyContract, inputs: RobotInputs) -> dict[str, Any]:
    """The request of one observation.

    Raises:
        UserError: the contract wants a camera, joint, size or instruction that is not there, or a
            position is not finite.
    """
    request: dict[str, Any] = {}
    for image in contract.images:
        pixels = inputs.images.get(image.camera)
        if pixels is None:
            present = sorted(inputs.images)
            raise UserError("camera_names", present, f"camera {image.camera!r} is missing")
        wanted = (*contract.image_size, 3)
        if pixels.shape != wanted:
            reason = f"the contract takes {list(wanted)}"
            raise UserError(f"images[{image.camera}]", list(pixels.shape), reason)
        put(request, image.key, _on_wire(image, pixels))
    columns: dict[tuple[str, ...], list[float]] = {}
    for part in contract.state:
        values = columns.setdefault(key_path(part.key), [])
        for joint in part.joints:
            values.append((_position(inputs.joints, joint) - part.offset) / part.scale)
    for path, values in columns.items():
        put(request, path, np.array(values, dtype=np.float32))
    if contract.instruction is not None:
        if not inputs.instruction:
            raise UserError("instruction", "", "the contract wants one: publish it on instruction")
        put(request, contract.instruction, inputs.instruction)
    return request


def inputs_of(contract: PolicyContract, request: Mapping[str, Any]) -> RobotInputs:
    """What a client sent. Images of another size are resized to the contract's.

    Raises:
        UserError: naming the key that is missing or the value that does not fit.
    """
    images = {image.camera: _from_wire(contract, image, request) for image in contract.images}
    joints: dict[str, float] = {}
    used: dict[tuple[str, ...], int] = {}
    widths: dict[tuple[str, ...], int] = {}
    for part in contract.state:
        path = key_path(part.key)
        widths[path] = widths.get(path, 0) + len(part.joints)
    for part in contract.state:
        path = key_path(part.key)
        vector = _numbers(request, path).reshape(-1)
        if vector.size != widths[path]:
            raise UserError(_shown(path), vector.size, f"must have {widths[path]} values")
        for joint in part.joints:
            column = used.get(path, 0)
            used[path] = column + 1
            value = float(vector[column])
            if not math.isfinite(value):
                raise UserError(f"{_shown(path)}[{column}]", value, "must be finite")
            joints[joint] = part.offset + value * part.scale
    instruction = ""
    if contract.instruction is not None:
        said = _get(request, key_path(contract.instruction))
        if not isinstance(said, str):
            raise UserError(_shown(key_path(contract.instruction)), said, "must be text")
        instruction = said
    return RobotInputs(images=images, joints=joints, instruction=instruction)


def actions_of(contract: PolicyContract, reply: Mapping[str, Any]) -> dict[tuple[str, ...], Floats]:
    """The action arrays of a reply by key, [horizon or more, columns], in the policy's units.

    Raises:
        UserError: one is missing, too short, of another width, or not finite.
    """
    found: dict[tuple[str, ...], Floats] = {}
    for path, width in _widths(contract.actions.parts).items():
        rows = _numbers(reply, path)
        horizon = contract.actions.horizon
        if rows.ndim != 2 or rows.shape[1] != width or rows.shape[0] < horizon:
            wanted = f"must be [{horizon} or more, {width}]"
            raise UserError(_shown(path), list(rows.shape), wanted)
        if not np.isfinite(rows).all():
            step, column = np.argwhere(~np.isfinite(rows))[0]
            name = f"{_shown(path)}[{step}, {column}]"
            raise UserError(name, float(rows[step, column]), "must be finite")
        found[path] = rows
    return found


def positions_of(
    contract: PolicyContract,
    actions: Mapping[tuple[str, ...], Floats],
    observed: Mapping[str, float],
) -> Floats:
    """Joint positions [horizon, joints] in rad or m, in the order of `contract.actions.joints`.

    `observed`: the joints of the observation that was asked about, from which deltas count.
    """
    columns: list[Floats] = []
    for part, column in _columns(contract):
        rows = actions[key_path(part.key)][: contract.actions.horizon]
        values = rows[:, column : column + len(part.joints)]
        if part.kind == "absolute":
            columns.append(part.offset + values * part.scale)
            continue
        start = np.array([_position(observed, joint) for joint in part.joints])
        steps = values * part.scale
        columns.append(start + (np.cumsum(steps, axis=0) if part.kind == "step_delta" else steps))
    return np.concatenate(columns, axis=1)


def reply_of(
    contract: PolicyContract, positions: Array, observed: Mapping[str, float]
) -> dict[str, Any]:
    """The reply with these joint positions [steps, joints], columns as `contract.actions.joints`:
    `positions_of` the other way round."""
    parts: dict[tuple[str, ...], list[Array]] = {}
    done = 0
    for part, _ in _columns(contract):
        values = np.asarray(positions[:, done : done + len(part.joints)], dtype=np.float64)
        done += len(part.joints)
        if part.kind == "absolute":
            wire = (values - part.offset) / part.scale
        else:
            start = np.array([[_position(observed, joint) for joint in part.joints]])
            steps = values - start
            if part.kind == "step_delta":
                steps = np.diff(values, axis=0, prepend=start)
            wire = steps / part.scale
        parts.setdefault(key_path(part.key), []).append(wire)
    reply: dict[str, Any] = {}
    for path, columns in parts.items():
        put(reply, path, np.concatenate(columns, axis=1).astype(np.float32))
    return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class LastChunk:
    """What the server gave last: the arrays of `actions_of`, and when their row 0 applies."""

    actions: Mapping[tuple[str, ...], Floats]
    start_ns: int


def extra_inputs(
    contract: PolicyContract,
    taken: Container[str],
    *,
    request_id: int,
    delay_s: float,
    last: LastChunk | None,
    capture_ns: int,
) -> dict[str, Any]:
    """What a server takes besides the observation, of what its metadata list.

    `inference_delay`: steps that pass from capture to reply. `prev_chunk_left_over`: the rows of
    the chunk before from the capture on, float32 [steps, columns] (a mapping where there are
    several keys); left out where none is left.
    """
    extra: dict[str, Any] = {}
    if "request_id" in taken:
        extra["request_id"] = request_id
    if "lookahead_s" in taken:
        extra["lookahead_s"] = delay_s
    if "inference_delay" in taken:
        extra["inference_delay"] = math.ceil(delay_s / contract.actions.step_s)
    if "prev_chunk_left_over" in taken and last is not None:
        left = left_over(
            last.actions,
            start_ns=last.start_ns,
            step_ns=round(contract.actions.step_s * 1e9),
            now_ns=capture_ns,
        )
        if left is not None:
            named = {_shown(path): rows.astype(np.float32) for path, rows in left.items()}
            one = next(iter(named.values()))
            extra["prev_chunk_left_over"] = one if len(named) == 1 else named
    return extra


def left_over(
    actions: Mapping[tuple[str, ...], Floats], *, start_ns: int, step_ns: int, now_ns: int
) -> Mapping[tuple[str, ...], Floats] | None:
    """The rows of an earlier chunk that still lie ahead at `now_ns`; None where none does."""
    past = max(0, math.ceil((now_ns - start_ns) / step_ns))
    left = {path: rows[past:] for path, rows in actions.items()}
    return left if all(len(rows) for rows in left.values()) else None


def _columns(contract: PolicyContract) -> list[tuple[ActionValues, int]]:
    """Each part of the actions, and its first column in the array of its key."""
    found: list[tuple[ActionValues, int]] = []
    used: dict[tuple[str, ...], int] = {}
    for part in contract.actions.parts:
        path = key_path(part.key)
        found.append((part, used.get(path, 0)))
        used[path] = found[-1][1] + len(part.joints)
    return found


def _widths(parts: Sequence[ActionValues]) -> dict[tuple[str, ...], int]:
    widths: dict[tuple[str, ...], int] = {}
    for part in parts:
        path = key_path(part.key)
        widths[path] = widths.get(path, 0) + len(part.joints)
    return widths


def _on_wire(image: ImageKey, pixels: Rgb) -> Rgb:
    if image.canvas is not None:
        height, width = image.canvas
        top, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
        canvas = np.zeros((height, width, 3), dtype=np.uint8)
        canvas[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
        pixels = canvas
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)) if image.channels_first else pixels


def _from_wire(contract: PolicyContract, image: ImageKey, request: Mapping[str, Any]) -> Rgb:
    path = key_path(image.key)
    pixels = _get(request, path)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3:
        shown = f"{pixels.dtype}{list(pixels.shape)}" if isinstance(pixels, np.ndarray) else pixels
        raise UserError(_shown(path), shown, "must be uint8 [height, width, 3]")
    if pixels.shape[2] != 3 and pixels.shape[0] == 3:
        pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0))
    return resize_rgb(pixels, contract.image_size)


def _position(joints: Mapping[str, float], joint: str) -> float:
    position = joints.get(joint)
    if position is None:
        raise UserError("joint_names", sorted(joints), f"joint {joint!r} is missing")
    if not math.isfinite(position):
        raise UserError(f"positions[{joint}]", position, "must be finite")
    return position


def put(mapping: dict[str, Any], key: Key, value: Any) -> None:
    """Set a value that may lie in nested mappings, which are made where they are missing."""
    *outer, last = key_path(key)
    for name in outer:
        mapping = mapping.setdefault(name, {})
    mapping[last] = value


def _get(mapping: Any, path: tuple[str, ...]) -> Any:
    value = mapping
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            raise UserError(_shown(path), None, "is missing")
        value = value[name]
    return value


def _numbers(mapping: Any, path: tuple[str, ...]) -> Floats:
    value = _get(mapping, path)
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(_shown(path), value, "must be an array of numbers") from None


def _shown(path: tuple[str, ...]) -> str:
    return ".".join(path)
