"""A chunk of actions placed in absolute time, and the checks that its content must pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats

Nanoseconds = npt.NDArray[np.int64]

_MAX_POINTS = 10_000
# Rounding of a converted angle is not a violation.
_POSITION_TOLERANCE = 1e-6


class ChunkRefusal(Enum):
    """Why a chunk did not enter the timeline."""

    NOT_STARTED = "the commanded state of the robot is not known yet"
    SHAPE = "sizes do not fit"
    WRONG_JOINTS = "joint names do not fit"
    NON_FINITE = "a value is not finite"
    POSITION_LIMIT = "a position is outside its limits"
    CLOCK = "its stamps do not belong to the present time"
    OLD_EPOCH = "its epoch is over"
    REPEATED = "it came before"
    REORDERED = "a newer one came before"
    LATE = "all of it is past"
    EARLY = "it starts too far ahead"
    STALE = "its observation is too old"
    JUMP = "it starts too far from the commanded state"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChunk:
    """A refusal; `detail` names joint, value and limit."""

    why: ChunkRefusal
    detail: str

    @property
    def reason(self) -> str:
        return f"chunk refused: {self.why.value}: {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IncomingChunk:
    """A chunk as received: rows are steps, columns follow `joint_names`.

    Stamps in nanoseconds of ROS time. `positions` [steps, joints]; `velocities` the same or None.
    """

    epoch: int
    chunk_id: int
    capture_oldest_ns: int
    start_ns: int
    step_ns: int
    joint_names: Sequence[str]
    positions: Floats
    velocities: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedChunk:
    """A checked chunk in the order of the robot's joints. Positions and velocities [steps, joints].

    `fade_begin_ns` and `fade_ns` say when it takes over from the chunk before (policy `blend`).
    """

    epoch: int
    chunk_id: int
    capture_oldest_ns: int
    start_ns: int
    step_ns: int
    positions: Floats
    velocities: Floats
    valid_until_ns: int
    fade_begin_ns: int = 0
    fade_ns: int = 0

    @property
    def end_ns(self) -> int:
        return self.start_ns + (len(self.positions) - 1) * self.step_ns

    def sample(self, times_ns: Nanoseconds) -> tuple[Floats, Floats]:
        """Positions and velocities [T, joints] of the cubics through the points; clamped to the
        ends."""
        last = len(self.positions) - 1
        if last == 0:
            shape = (times_ns.size, self.positions.shape[1])
            return np.broadcast_to(self.positions[0], shape), np.zeros(shape)
        at = np.clip((times_ns - self.start_ns) / self.step_ns, 0.0, float(last))
        index = np.minimum(at.astype(np.intp), last - 1)
        s = (at - index)[:, None]
        h = self.step_ns * 1e-9
        q0, q1 = self.positions[index], self.positions[index + 1]
        v0, v1 = self.velocities[index], self.velocities[index + 1]
        rest = 1.0 - s
        positions = q0 + s * s * (3.0 - 2.0 * s) * (q1 - q0) + h * s * rest * (rest * v0 - s * v1)
        velocities = (
            6.0 * s * rest / h * (q1 - q0) + rest * (1.0 - 3.0 * s) * v0 + s * (3.0 * s - 2.0) * v1
        )
        return positions, velocities


def check_chunk(
    chunk: IncomingChunk, limits: RobotLimits, *, near: Floats, max_age_ns: int
) -> TimedChunk | RefusedChunk:
    """Check sizes, names, values and position limits; put columns into the robot's order.

    Continuous joints are moved by whole turns next to `near` [joints] and unwrapped within the
    chunk.
    """
    names = tuple(chunk.joint_names)
    joints = len(limits.names)
    refused = _check_names(names, limits)
    if refused is not None:
        return refused
    shapes = [chunk.positions.shape]
    if chunk.velocities is not None:
        shapes.append(chunk.velocities.shape)
    for shape in shapes:
        if len(shape) != 2 or shape[1] != joints or not 1 <= shape[0] <= _MAX_POINTS:
            return _refuse(ChunkRefusal.SHAPE, f"{shape}, expected (1..{_MAX_POINTS}, {joints})")
    if len(set(shapes)) != 1:
        return _refuse(ChunkRefusal.SHAPE, f"positions {shapes[0]}, velocities {shapes[1]}")
    if chunk.step_ns <= 0:
        return _refuse(ChunkRefusal.SHAPE, f"a step of {chunk.step_ns} ns")
    order = [names.index(name) for name in limits.names]
    positions = np.array(chunk.positions[:, order], dtype=np.float64)
    given = chunk.velocities
    velocities = None if given is None else np.array(given[:, order], dtype=np.float64)
    for kind, values in (("position", positions), ("velocity", velocities)):
        if values is not None and not np.isfinite(values).all():
            step, joint = np.argwhere(~np.isfinite(values))[0]
            return _refuse(
                ChunkRefusal.NON_FINITE,
                f"{limits.names[joint]}: {kind} {values[step, joint]} at step {step}",
            )
    _unwrap(positions, limits, near)
    over = _outside(positions, limits)
    if over is not None:
        return over
    if velocities is None:
        velocities = _slopes(positions, chunk.step_ns * 1e-9)
    return TimedChunk(
        epoch=chunk.epoch,
        chunk_id=chunk.chunk_id,
        capture_oldest_ns=chunk.capture_oldest_ns,
        start_ns=chunk.start_ns,
        step_ns=chunk.step_ns,
        positions=positions,
        velocities=velocities,
        valid_until_ns=chunk.capture_oldest_ns + max_age_ns,
    )


def _refuse(why: ChunkRefusal, detail: str) -> RefusedChunk:
    return RefusedChunk(why=why, detail=detail)


def _check_names(names: tuple[str, ...], limits: RobotLimits) -> RefusedChunk | None:
    for name in limits.names:
        if names.count(name) != 1:
            state = "missing" if name not in names else "named twice"
            return _refuse(ChunkRefusal.WRONG_JOINTS, f"{name} is {state}")
    for name in names:
        if name not in limits.names:
            return _refuse(ChunkRefusal.WRONG_JOINTS, f"{name} is not a joint of this robot")
    return None


def _unwrap(positions: Floats, limits: RobotLimits, near: Floats) -> None:
    for joint, wraps in enumerate(limits.wraps):
        if wraps:
            turned = np.unwrap(positions[:, joint])
            first = limits.unwrapped(joint, float(turned[0]), float(near[joint]))
            positions[:, joint] = turned + (first - turned[0])


def _outside(positions: Floats, limits: RobotLimits) -> RefusedChunk | None:
    lower, upper = np.array(limits.lower), np.array(limits.upper)
    over = (positions < lower - _POSITION_TOLERANCE) | (positions > upper + _POSITION_TOLERANCE)
    if not over.any():
        return None
    step, joint = np.argwhere(over)[0]
    value = float(positions[step, joint])
    limit = limits.lower[joint] if value < limits.lower[joint] else limits.upper[joint]
    return _refuse(
        ChunkRefusal.POSITION_LIMIT,
        f"{limits.names[joint]}: {value:.4f} beyond {limit:.4f} at step {step}",
    )


def _slopes(positions: Floats, step_s: float) -> Floats:
    if len(positions) == 1:
        return np.zeros_like(positions)
    return np.asarray(np.gradient(positions, step_s, axis=0))
