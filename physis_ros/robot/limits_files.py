"""Reads joint limits from YAML: a robot's file of ours, or MoveIt's joint_limits.yaml."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from physis_core.files import nearest, read_file
from physis_core.types import UserError
from physis_ros.robot.joint_limits import JointLimit, check_limit

_QUANTITY_OF_KEY = {
    "lower_rad": "lower",
    "lower_m": "lower",
    "upper_rad": "upper",
    "upper_m": "upper",
    "velocity_rad_s": "velocity",
    "velocity_m_s": "velocity",
    "acceleration_rad_s2": "acceleration",
    "acceleration_m_s2": "acceleration",
    "jump_rad": "jump",
    "jump_m": "jump",
    "tracking_rad": "tracking",
    "tracking_m": "tracking",
    "rest_rad": "rest",
    "rest_m": "rest",
}
_MOVEIT = {
    "min_position": ("lower", "has_position_limits"),
    "max_position": ("upper", "has_position_limits"),
    "max_velocity": ("velocity", "has_velocity_limits"),
    "max_acceleration": ("acceleration", "has_acceleration_limits"),
}
_MOVEIT_OTHER = (
    "has_position_limits",
    "has_velocity_limits",
    "has_acceleration_limits",
    "has_deceleration_limits",
    "max_deceleration",
    "has_jerk_limits",
    "max_jerk",
    "has_effort_limits",
    "max_effort",
    "has_soft_limits",
    "k_position",
    "k_velocity",
    "soft_lower_limit",
    "soft_upper_limit",
    "angle_wraparound",
    "drive_before_wrap",
)


def load_limits_file(path: str | Path) -> dict[str, JointLimit]:
    """Read `joints: {name: {lower_rad: .., velocity_rad_s: ..}}`, or `joint_limits:` of MoveIt.

    Raises:
        UserError: the file cannot be read, or its content is wrong; it is named.
    """
    document = read_file(Path(path), "limits_file")
    try:
        if isinstance(document, Mapping) and "joint_limits" in document:
            return _moveit(document)
        return _ours(document)
    except UserError as error:
        raise UserError(error.field, error.value, f"{error.reason} (in {path})") from None


def _ours(document: Any) -> dict[str, JointLimit]:
    if not isinstance(document, Mapping) or not isinstance(document.get("joints"), Mapping):
        raise UserError("joints", None, "the file must hold a mapping `joints`")
    known = ("robot", "source", "joints")
    for key in document:
        if key not in known:
            raise UserError(str(key), document[key], f"unknown key{nearest(str(key), known)}")
    return {
        str(name): _limit_from_mapping(str(name), entry)
        for name, entry in document["joints"].items()
    }


def _limit_from_mapping(name: str, entry: Any) -> JointLimit:
    if not isinstance(entry, Mapping):
        raise UserError(f"joints.{name}", entry, "must be a mapping of limits")
    quantities: dict[str, float] = {}
    continuous = False
    units: set[str] = set()
    for key, value in entry.items():
        field = f"joints.{name}.{key}"
        if key == "continuous":
            if not isinstance(value, bool):
                raise UserError(field, value, "must be true or false")
            continuous = value
            continue
        quantity = _QUANTITY_OF_KEY.get(str(key))
        if quantity is None:
            raise UserError(field, value, f"unknown key{_nearest_key(str(key), entry)}")
        if quantity in quantities:
            raise UserError(field, value, "given twice, in two units")
        units.add("m" if "_m" in str(key) else "rad")
        quantities[quantity] = _number(field, value)
    if len(units) > 1:
        raise UserError(f"joints.{name}", dict(entry), "mixes radians and metres")
    limit = JointLimit(continuous=continuous, prismatic="m" in units, **quantities)
    check_limit(name, limit)
    return limit


def _nearest_key(key: str, entry: Mapping[Any, Any]) -> str:
    """In the unit of the joint's other keys; radians where there are none."""
    metres = any("_m" in str(other) for other in entry if str(other) in _QUANTITY_OF_KEY)
    known = [name for name in _QUANTITY_OF_KEY if ("_m" in name) == metres]
    # `max_velocity`, `velocity_limit`: the quantity is in the word.
    for name in known:
        if _QUANTITY_OF_KEY[name] in key:
            return f"; did you mean {name!r}?"
    return nearest(key, [*known, "continuous"])


def _moveit(document: Mapping[Any, Any]) -> dict[str, JointLimit]:
    """A limit counts where its `has_..._limits` is true, as in MoveIt."""
    joints = document["joint_limits"]
    if not isinstance(joints, Mapping):
        raise UserError("joint_limits", joints, "must map joint names to limits")
    limits: dict[str, JointLimit] = {}
    for name, entry in joints.items():
        if not isinstance(entry, Mapping):
            raise UserError(f"joint_limits.{name}", entry, "must be a mapping of limits")
        known = (*_MOVEIT, *_MOVEIT_OTHER)
        for key, value in entry.items():
            if key not in known:
                reason = f"unknown key{nearest(str(key), known)}"
                raise UserError(f"joint_limits.{name}.{key}", value, reason)
        quantities: dict[str, Any] = {}
        for key, (quantity, has) in _MOVEIT.items():
            stated = entry.get(has, False)
            if not isinstance(stated, bool):
                raise UserError(f"joint_limits.{name}.{has}", stated, "must be true or false")
            if key in entry and has not in entry:
                raise UserError(f"joint_limits.{name}.{has}", None, f"missing beside {key}")
            if stated and key not in entry:
                raise UserError(f"joint_limits.{name}.{key}", None, f"missing beside {has}: true")
            if stated:
                quantities[quantity] = _number(f"joint_limits.{name}.{key}", entry[key])
        limits[str(name)] = limit = JointLimit(**quantities)
        check_limit(str(name), limit)
    return limits


def _number(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(field, value, "must be a number")
    if not math.isfinite(value):
        raise UserError(field, value, "must be finite")
    return float(value)
