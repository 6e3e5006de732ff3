"""How the arm came to rest after a kill, from the records of arm and buffer. Pure.

The evidence is the simulated arm's own record: commanded and measured state at every controller
tick. Times are seconds of the host's steady clock, which all processes share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.rowlog import RowTable
from physis_lab.session.run_record import joint_paths

Floats = npt.NDArray[np.float64]

STILL_RAD_S = 0.02
"""The arm rests when it is measured slower than this and no velocity is commanded."""
REST_SHOWN_S = 0.3
"""Rest counts after it has lasted this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """One trial. `rest_s`: from the kill until the arm was measured at rest. `brake_lag_s`: delay
    between the last valid point and the start of braking, derived from the end of braking."""

    killed: str
    speed_rad_s: float
    rest_s: float
    brake_lag_s: float


def speed_now(arm: RowTable) -> float:
    """Largest commanded joint speed of the newest tick; 0 before the first."""
    return float(np.abs(joint_paths(arm, "cmdd")[-1]).max()) if arm.rows else 0.0


def resting_since(arm: RowTable, after_s: float) -> float | None:
    """Start of the rest that lasts until the end of the record; None before REST_SHOWN_S of it."""
    moves = (joint_paths(arm, "cmdd") != 0.0).any(axis=1)
    moves |= (np.abs(joint_paths(arm, "qd")) > STILL_RAD_S).any(axis=1)
    moves |= arm["t_s"] < after_s
    if not arm.rows or moves[-1]:
        return None
    last = np.flatnonzero(moves)
    began = int(last[-1]) + 1 if last.size else 0
    since_s = float(arm["t_s"][began])
    return since_s if arm["t_s"][-1] - since_s >= REST_SHOWN_S else None


def last_valid_s(chunks: RowTable, servo: RowTable) -> float:
    """Due time of the last point of the last chunk that left the buffer as a command.

    A chunk's row gives its start; its end follows from the buffered time ahead (depth) in the
    servo ticks.

    Raises:
        ValueError: no chunk left as a command, or no servo tick followed it.
    """
    left = (chunks["accepted"] == 1) & (chunks["handoff_ns"] > 0)
    starts_ns, at_s = chunks["start_ns"][left], chunks["t_s"][left]
    newest = np.searchsorted(at_s, servo["t_s"], side="right") - 1
    known = (newest >= 0) & (servo["depth_s"] > 0.0)
    if not known.any():
        raise ValueError("no servo tick gives the end of a chunk")
    reach_ns = servo["ros_ns"][known] + servo["depth_s"][known] * 1e9 - starts_ns[newest[known]]
    return float(starts_ns[-1] + np.median(reach_ns)) * 1e-9 + to_steady_s(servo)


def to_steady_s(servo: RowTable) -> float:
    """Offset from seconds of ROS time to steady time."""
    return float(np.median(servo["t_s"] - servo["ros_ns"] * 1e-9))


def planned_speeds(windows: Sequence[Mapping[str, Any]], at_s: float, offset_s: float) -> Floats:
    """Joint velocities [joints] of the newest window at `at_s`.

    A window has `start_ns` (ROS), `times_s` [N] from there, and `velocities` [N, joints];
    `offset_s` converts to steady time.

    Raises:
        ValueError: there is no window.
    """
    if not windows:
        raise ValueError("the buffer sent no window")
    newest = max(windows, key=lambda window: int(window["start_ns"]))
    times = newest["start_ns"] * 1e-9 + offset_s + np.asarray(newest["times_s"])
    velocities = np.asarray(newest["velocities"])
    return np.array([np.interp(at_s, times, velocities[:, j]) for j in range(velocities.shape[1])])


def brake_lag_s(
    arm: RowTable, killed_s: float, valid_s: float, speeds: Floats, braking: Sequence[float]
) -> float:
    """How much later braking ended than if it had started at `valid_s`, the last valid point.

    `speeds` [joints]: planned at that point. Each joint needs its speed / `braking` [joints,
    rad/s^2] to stop; the robot rests when the last joint does. The planned speed counts rather than
    the arm's, because the arm may still have been approaching the plan.

    Raises:
        ValueError: the arm does not rest at the end of the record.
    """
    at_s, commanded = arm["t_s"], joint_paths(arm, "cmdd")
    if (commanded[-1] != 0.0).any():
        raise ValueError("the arm does not rest at the end of the record")
    moving = np.flatnonzero((commanded != 0.0).any(axis=1) & (at_s >= killed_s))
    # It came to rest between its last moving tick and the next one, from its last speed.
    last = int(moving[-1]) if moving.size else int(np.searchsorted(at_s, killed_s))
    rest_s = float(at_s[last] + np.max(np.abs(commanded[last]) / np.asarray(braking)))
    return rest_s - valid_s - float(np.max(np.abs(speeds) / np.asarray(braking)))


def rest_of(
    killed: str,
    arm: RowTable,
    killed_s: float,
    valid_s: float,
    speeds: Floats,
    braking: Sequence[float],
) -> Rest:
    """One trial, from the arm's record up to a rest (`resting_since`).

    Raises:
        ValueError: the arm does not rest at the end of the record.
    """
    since_s = resting_since(arm, killed_s)
    if since_s is None:
        raise ValueError("the arm does not rest at the end of the record")
    before = arm["t_s"] <= killed_s
    speed = np.abs(joint_paths(arm, "cmdd")[before][-1]).max() if before.any() else 0.0
    return Rest(
        killed=killed,
        speed_rad_s=float(speed),
        rest_s=since_s - killed_s,
        brake_lag_s=brake_lag_s(arm, killed_s, valid_s, speeds, braking),
    )
