"""How the arm came to rest after a kill, from the records of arm and buffer. Pure but for reading.

The judge is the simulated arm's own record: what was commanded and measured at every tick of its
controller. Times are seconds of the host's steady clock, which all processes share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_core.observe.rowlog import RowTable

Floats = npt.NDArray[np.float64]

STILL_RAD_S = 0.02
"""Measured slower than this, with nothing commanded, the arm rests."""
REST_SHOWN_S = 0.3
"""Rest counts when it has lasted so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """One trial. `rest_s`: from the kill until the arm was measured at rest. `brake_lag_s`: how
    long after the last valid point braking began, by when it ended; negative: before."""

    killed: str
    speed_rad_s: float
    rest_s: float
    brake_lag_s: float


def joints_of(arm: RowTable, kind: str) -> Floats:
    """Columns kind0, kind1, ... as [rows, joints]."""
    count = sum(
        1 for name in arm.columns if name[: len(kind)] == kind and name[len(kind) :].isdigit()
    )
    return np.stack([arm[f"{kind}{joint}"] for joint in range(count)], axis=1)


def speed_now(arm: RowTable) -> float:
    """Largest commanded joint speed of the newest tick; 0 before the first."""
    return float(np.abs(joints_of(arm, "cmdd")[-1]).max()) if arm.rows else 0.0


def resting_since(arm: RowTable, after_s: float) -> float | None:
    """When the rest began that lasts to the end of the record; None while it was not shown yet."""
    moves = (joints_of(arm, "cmdd") != 0.0).any(axis=1)
    moves |= (np.abs(joints_of(arm, "qd")) > STILL_RAD_S).any(axis=1)
    moves |= arm["t_s"] < after_s
    if not arm.rows or moves[-1]:
        return None
    last = np.flatnonzero(moves)
    began = int(last[-1]) + 1 if last.size else 0
    since_s = float(arm["t_s"][began])
    return since_s if arm["t_s"][-1] - since_s >= REST_SHOWN_S else None


def last_valid_s(chunks: RowTable, servo: RowTable) -> float:
    """When the last point of the last chunk was due that left the buffer as a command.

    A chunk's row tells its start; how far it reaches is what the servo ticks say of the playable
    time ahead (depth).

    Raises:
        ValueError: no chunk left as a command, or no tick followed one.
    """
    left = (chunks["accepted"] == 1) & (chunks["handoff_ns"] > 0)
    starts_ns, at_s = chunks["start_ns"][left], chunks["t_s"][left]
    newest = np.searchsorted(at_s, servo["t_s"], side="right") - 1
    told = (newest >= 0) & (servo["depth_s"] > 0.0)
    if not told.any():
        raise ValueError("no servo tick tells how far a chunk reaches")
    reach_ns = servo["ros_ns"][told] + servo["depth_s"][told] * 1e9 - starts_ns[newest[told]]
    return float(starts_ns[-1] + np.median(reach_ns)) * 1e-9 + to_steady_s(servo)


def to_steady_s(servo: RowTable) -> float:
    """What to add to seconds of ROS time."""
    return float(np.median(servo["t_s"] - servo["ros_ns"] * 1e-9))


def planned_speeds(windows: Sequence[Mapping[str, Any]], at_s: float, offset_s: float) -> Floats:
    """[joints]: how fast the newest window moves at that moment. A window holds `start_ns` (ROS),
    `times_s` [N] from there and `velocities` [N, joints]; `offset_s` leads to steady time.

    Raises:
        ValueError: there is none.
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
    """How much later braking ended than if it had begun at `valid_s`, the last valid point.

    `speeds` [joints]: planned for that point; each joint needs its speed over `braking` [joints,
    rad/s^2] to stop, and the robot rests when the last one does. What is planned counts, not what
    the arm did by then: it may still have been on its way to what was planned, and meets it later.

    Raises:
        ValueError: where the arm does not rest at the end of the record.
    """
    at_s, commanded = arm["t_s"], joints_of(arm, "cmdd")
    if (commanded[-1] != 0.0).any():
        raise ValueError("the arm does not rest at the end of the record")
    moving = np.flatnonzero((commanded != 0.0).any(axis=1) & (at_s >= killed_s))
    # Between its last moving tick and the next one it came to rest: from its last speed.
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
    """One trial, from the arm's record up to a rest that was shown (`resting_since`).

    Raises:
        ValueError: where the arm does not rest at the end of the record.
    """
    since_s = resting_since(arm, killed_s)
    if since_s is None:
        raise ValueError("the arm does not rest at the end of the record")
    before = arm["t_s"] <= killed_s
    speed = np.abs(joints_of(arm, "cmdd")[before][-1]).max() if before.any() else 0.0
    return Rest(
        killed=killed,
        speed_rad_s=float(speed),
        rest_s=since_s - killed_s,
        brake_lag_s=brake_lag_s(arm, killed_s, valid_s, speeds, braking),
    )
