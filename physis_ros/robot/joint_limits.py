"""Limits of each joint, merged from several sources; the tightest wins.

Nothing is assumed: a joint without a velocity, acceleration or jump limit in any source is refused
by name. Only continuous joints wrap at +-pi.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from physis_core.types import UserError

# No revolute joint turns this far; a larger number is an angle in degrees.
_LARGEST_PLAUSIBLE_RAD = 40.0

_UNITS = {
    "lower": "",
    "upper": "",
    "velocity": "_s",
    "acceleration": "_s2",
    "jump": "",
    "tracking": "",
    "rest": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLimit:
    """The limits of one joint in one source, in rad or m; None where the source has none.

    `jump`: the largest accepted distance between the commanded state and the position that a new
    command requests for the same moment. `tracking`, `rest`: this joint's own tolerances in place
    of safety_node's `tracking_tolerance` and `rest_tolerance`.
    """

    lower: float | None = None
    upper: float | None = None
    velocity: float | None = None
    acceleration: float | None = None
    jump: float | None = None
    tracking: float | None = None
    rest: float | None = None
    continuous: bool = False
    prismatic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotLimits:
    """Complete limits of the commanded joints, each a tuple in the order of `names`. `tracking`
    and `rest`: a joint's own tolerances, None where it has none; empty: none has."""

    names: tuple[str, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    velocity: tuple[float, ...]
    acceleration: tuple[float, ...]
    jump: tuple[float, ...]
    wraps: tuple[bool, ...]
    tracking: tuple[float | None, ...] = ()
    rest: tuple[float | None, ...] = ()

    def scaled(self, *, velocity: float, acceleration: float) -> RobotLimits:
        """The same robot, driven at a share of its velocity and of its acceleration.

        Raises:
            UserError: a share outside (0, 1].
        """
        for name, share in (("velocity_share", velocity), ("acceleration_share", acceleration)):
            if not 0.0 < share <= 1.0:
                raise UserError(name, share, "must be above 0 and at most 1")
        return replace(
            self,
            velocity=tuple(velocity * value for value in self.velocity),
            acceleration=tuple(acceleration * value for value in self.acceleration),
        )

    def unwrapped(self, joint: int, value: float, near: float) -> float:
        """The same angle, as close as possible to `near`, where the joint is continuous."""
        if not self.wraps[joint]:
            return value
        return near + math.remainder(value - near, math.tau)


def merge_limits(sources: Iterable[Mapping[str, JointLimit]]) -> dict[str, JointLimit]:
    """Joint by joint, the tightest of what the sources say.

    Raises:
        UserError: two sources leave no position between lower and upper.
    """
    merged: dict[str, JointLimit] = {}
    for source in sources:
        for name, limit in source.items():
            known = merged.get(name)
            merged[name] = limit if known is None else _tighter(known, limit)
    for name, limit in merged.items():
        _require_ordered(name, limit)
    return merged


def robot_limits(
    names: Sequence[str], sources: Iterable[Mapping[str, JointLimit]], *, where: str = "all sources"
) -> RobotLimits:
    """Complete limits of the joints in `names`, in that order. `where` names the sources.

    Raises:
        UserError: a joint unknown to every source, repeated, or with a limit that nobody gives.
    """
    if not names:
        raise UserError("joint_names", list(names), "must name at least one joint")
    repeated = [name for index, name in enumerate(names) if name in names[:index]]
    if repeated:
        raise UserError("joint_names", repeated[0], "named twice")
    merged = merge_limits(sources)
    chosen = []
    for name in names:
        limit = merged.get(name)
        if limit is None:
            known = ", ".join(sorted(merged)) or "none"
            raise UserError(
                "joint_names", name, f"no limits for this joint in {where}; known: {known}"
            )
        chosen.append((name, limit))
    return RobotLimits(
        names=tuple(names),
        lower=tuple(_bound(name, limit, "lower", -math.inf, where) for name, limit in chosen),
        upper=tuple(_bound(name, limit, "upper", math.inf, where) for name, limit in chosen),
        velocity=tuple(_required(name, limit, "velocity", where) for name, limit in chosen),
        acceleration=tuple(_required(name, limit, "acceleration", where) for name, limit in chosen),
        jump=tuple(_required(name, limit, "jump", where) for name, limit in chosen),
        wraps=tuple(
            limit.continuous and limit.lower is None and limit.upper is None for _, limit in chosen
        ),
        tracking=tuple(limit.tracking for _, limit in chosen),
        rest=tuple(limit.rest for _, limit in chosen),
    )


def tolerances(own: Sequence[float | None], joints: int, otherwise: float) -> tuple[float, ...]:
    """Of each joint its own tolerance, or `otherwise` where it has none."""
    values = own or (None,) * joints
    return tuple(otherwise if value is None else value for value in values)


def field_name(joint: str, quantity: str, *, prismatic: bool = False) -> str:
    """What a robot's file calls it: joints.lift.upper_m."""
    unit = "m" if prismatic else "rad"
    return f"joints.{joint}.{quantity}_{unit}{_UNITS[quantity]}"


def check_limit(name: str, limit: JointLimit) -> None:
    """Refuse values that cannot be limits of a joint.

    Raises:
        UserError: naming the joint and the value.
    """
    for quantity in ("velocity", "acceleration", "jump", "tracking", "rest"):
        value = getattr(limit, quantity)
        if value is not None and not value > 0.0:
            field = field_name(name, quantity, prismatic=limit.prismatic)
            raise UserError(field, value, "must be above 0")
    if not limit.prismatic:
        for quantity in ("lower", "upper", "velocity", "jump", "tracking", "rest"):
            value = getattr(limit, quantity)
            if value is not None and abs(value) > _LARGEST_PLAUSIBLE_RAD:
                raise UserError(
                    field_name(name, quantity), value, "radians are expected; is it in degrees?"
                )
    _require_ordered(name, limit)


def _require_ordered(name: str, limit: JointLimit) -> None:
    if limit.lower is not None and limit.upper is not None and limit.lower >= limit.upper:
        raise UserError(
            field_name(name, "lower", prismatic=limit.prismatic),
            limit.lower,
            f"must be below the upper limit {limit.upper!r}",
        )


def _tighter(one: JointLimit, other: JointLimit) -> JointLimit:
    chosen: dict[str, Any] = {}
    for field in fields(JointLimit):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("continuous", "prismatic"):
            chosen[field.name] = first or second
        elif first is None or second is None:
            chosen[field.name] = second if first is None else first
        else:
            chosen[field.name] = max(first, second) if field.name == "lower" else min(first, second)
    return JointLimit(**chosen)


def _bound(name: str, limit: JointLimit, quantity: str, free: float, where: str) -> float:
    value: float | None = getattr(limit, quantity)
    if value is None and limit.continuous:
        return free
    if value is None:
        field = field_name(name, quantity, prismatic=limit.prismatic)
        raise UserError(field, None, f"missing in {where}, and the joint is not continuous")
    return value


def _required(name: str, limit: JointLimit, quantity: str, where: str) -> float:
    value: float | None = getattr(limit, quantity)
    if value is None:
        field = field_name(name, quantity, prismatic=limit.prismatic)
        raise UserError(field, None, f"missing in {where}")
    return value
