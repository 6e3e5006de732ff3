"""Reads joint limits from a robot description (URDF); never resolves an XML entity."""

from __future__ import annotations

import math
from collections.abc import Container
from xml.etree import ElementTree
from xml.parsers import expat

from physis_core.types import UserError
from physis_ros.robot.joint_limits import JointLimit, check_limit

# A robot description refers to meshes by file name and is far smaller.
_LARGEST_TEXT_BYTES = 20_000_000
_MOVING = ("revolute", "continuous", "prismatic")


def limits_from_urdf(text: str, names: Container[str] | None = None) -> dict[str, JointLimit]:
    """Limits of every joint in `names` (None: of every joint) except fixed and mimic joints.

    A `safety_controller` element's soft limits, where present, tighten lower and upper. What a
    description says of other joints (a gripper with velocity="0") is not looked at.

    Raises:
        UserError: not XML, a document type or entity inside, or a limit that cannot be one.
    """
    root = parse_urdf(text)
    if root.tag != "robot":
        raise UserError("robot_description", root.tag, "the root element must be <robot>")
    limits: dict[str, JointLimit] = {}
    for joint in root.findall("joint"):
        name = joint.get("name")
        kind = joint.get("type")
        if not name:
            raise UserError("robot_description", "joint", "a joint without a name")
        if kind not in _MOVING or joint.find("mimic") is not None:
            continue
        if name in limits:
            raise UserError("robot_description", name, "two joints have this name")
        wanted = names is None or name in names
        limits[name] = _joint_limit(name, kind, joint) if wanted else JointLimit()
    return {name: limit for name, limit in limits.items() if names is None or name in names}


def _joint_limit(name: str, kind: str, joint: ElementTree.Element) -> JointLimit:
    element = joint.find("limit")
    if element is None:
        if kind != "continuous":
            raise UserError(f"joints.{name}.limit", None, f"a {kind} joint must have one")
        return JointLimit(continuous=True)
    lower = upper = None
    if kind != "continuous":
        # The URDF specification gives both a default of 0.
        lower, upper = _value(name, element, "lower", 0.0), _value(name, element, "upper", 0.0)
        soft = joint.find("safety_controller")
        if soft is not None and lower is not None and upper is not None:
            lower = max(lower, _soft(name, soft, "soft_lower_limit", lower))
            upper = min(upper, _soft(name, soft, "soft_upper_limit", upper))
    limit = JointLimit(
        lower=lower,
        upper=upper,
        velocity=_value(name, element, "velocity", None),
        acceleration=_value(name, element, "acceleration", None),
        continuous=kind == "continuous",
        prismatic=kind == "prismatic",
    )
    check_limit(name, limit)
    return limit


def _value(
    name: str, element: ElementTree.Element, attribute: str, absent: float | None
) -> float | None:
    text = element.get(attribute)
    if text is None:
        return absent
    field = f"joints.{name}.{attribute}"
    try:
        value = float(text)
    except ValueError:
        raise UserError(field, text, "must be a number") from None
    if not math.isfinite(value):
        raise UserError(field, text, "must be finite")
    return value


def _soft(name: str, element: ElementTree.Element, attribute: str, hard: float) -> float:
    value = _value(name, element, attribute, hard)
    return hard if value is None else value


def parse_urdf(text: str) -> ElementTree.Element:
    data = text.encode("utf-8")
    if len(data) > _LARGEST_TEXT_BYTES:
        raise UserError("robot_description", len(data), "too many bytes for a robot description")
    _refuse_document_type(data)
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise UserError("robot_description", text[:40], f"not valid XML: {error}") from None


def _refuse_document_type(data: bytes) -> None:
    """Entities can read files and expand without bound; no robot description needs them."""

    def refuse(name: str, *_: object) -> None:
        raise UserError("robot_description", name, "a document type is not accepted")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        head = data[:40].decode("utf-8", "replace")
        raise UserError("robot_description", head, f"not valid XML: {error}") from None
