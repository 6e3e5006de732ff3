"""Where the tool is for given joint positions, from a robot description (URDF).

Forward kinematics and the tool's velocity as in B. Siciliano et al., Robotics, sections 2.8 and
3.1: a product of link transforms, and the geometric Jacobian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

from physis_core.types import UserError
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.urdf_limits import parse_urdf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Joint:
    """`index` among the commanded joints, or -1 where fixed. `offset` [3] and `turn` [3, 3]: from
    the parent link to the joint's frame; `axis` [3] in that frame."""

    name: str
    index: int
    prismatic: bool
    offset: Floats
    turn: Floats
    axis: Floats


class KinematicChain:
    """Of commanded joints `names`, from the description's root link to `tool_link`. The description
    may leave out `prefix` in front of a joint's name.

    Raises:
        UserError: no such link, or a joint on the way that is not commanded.
    """

    def __init__(
        self, text: str, names: Sequence[str], tool_link: str, *, prefix: str = ""
    ) -> None:
        root = parse_urdf(text)
        parent_of = {_link(joint, "child"): joint for joint in root.findall("joint")}
        links = {link.get("name") for link in root.findall("link")}
        if tool_link not in links:
            raise UserError("tool_link", tool_link, "is no link of the robot description")
        joints: list[_Joint] = []
        link = tool_link
        while link in parent_of:
            element = parent_of[link]
            joints.append(_joint(element, names, tool_link, prefix))
            link = _link(element, "parent")
            if len(joints) > len(links):
                raise UserError("robot_description", link, "its links form a ring")
        self.base_link = link
        self._joints = joints[::-1]

    def tool(self, positions: Floats, velocities: Floats) -> tuple[Floats, Floats]:
        """Position and speed of the tool's origin in `base_link`.

        Args:
            positions, velocities: of the commanded joints, [N, joints].

        Returns:
            Position [N, 3] in m, and speed [N] in m/s.
        """
        count = len(positions)
        place: Floats = np.zeros((count, 3))
        turn: Floats = np.broadcast_to(np.eye(3), (count, 3, 3))
        moving: list[tuple[_Joint, Floats, Floats]] = []
        for joint in self._joints:
            place = place + turn @ joint.offset
            turn = turn @ joint.turn
            if joint.index < 0:
                continue
            axis = turn @ joint.axis
            moving.append((joint, place, axis))
            value = positions[:, joint.index]
            if joint.prismatic:
                place = place + axis * value[:, None]
            else:
                turn = turn @ _rotations(joint.axis, value)
        velocity: Floats = np.zeros((count, 3))
        for joint, origin, axis in moving:
            reach = axis if joint.prismatic else np.cross(axis, place - origin)
            velocity += reach * velocities[:, joint.index, None]
        return place, np.linalg.norm(velocity, axis=1)


def _rotations(axis: Floats, angles: Floats) -> Floats:
    """Rotation matrices [N, 3, 3] about `axis` [3] by `angles` [N] (Rodrigues' formula)."""
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    sine, cosine = np.sin(angles)[:, None, None], np.cos(angles)[:, None, None]
    return np.asarray(np.eye(3) + sine * cross + (1.0 - cosine) * (cross @ cross))


def _joint(
    element: ElementTree.Element, names: Sequence[str], tool_link: str, prefix: str
) -> _Joint:
    name, kind = element.get("name", ""), element.get("type", "")
    moves = kind in ("revolute", "continuous", "prismatic")
    if not moves and kind != "fixed":
        raise UserError(f"joints.{name}.type", kind, f"on the way to {tool_link} is not supported")
    ours = name if name in names else prefix + name
    if moves and ours not in names:
        raise UserError("tool_link", tool_link, f"joint {name} on the way is not commanded")
    origin = element.find("origin")
    xyz = _numbers(name, origin, "xyz", "0 0 0")
    axis = _numbers(name, element.find("axis"), "xyz", "1 0 0")
    length = float(np.linalg.norm(axis))
    if moves and not length > 0.0:
        raise UserError(f"joints.{name}.axis", axis.tolist(), "has no length")
    return _Joint(
        name=name,
        index=names.index(ours) if moves else -1,
        prismatic=kind == "prismatic",
        offset=xyz,
        turn=_roll_pitch_yaw(*_numbers(name, origin, "rpy", "0 0 0")),
        axis=axis / length if length else axis,
    )


def _roll_pitch_yaw(roll: float, pitch: float, yaw: float) -> Floats:
    """URDF: about the fixed axes x, y, z, in this order."""
    x, y, z = (
        _rotations(np.eye(3)[k], np.array([angle]))[0] for k, angle in enumerate((roll, pitch, yaw))
    )
    return np.asarray(z @ y @ x)


def _numbers(name: str, element: ElementTree.Element | None, key: str, absent: str) -> Floats:
    text = absent if element is None else element.get(key, absent)
    try:
        values = [float(word) for word in text.split()]
    except ValueError:
        values = []
    if len(values) != 3 or not all(math.isfinite(value) for value in values):
        raise UserError(f"joints.{name}.{key}", text, "must be three finite numbers")
    return np.array(values)


def _link(joint: ElementTree.Element, end: str) -> str:
    element = joint.find(end)
    link = "" if element is None else element.get("link", "")
    if not link:
        raise UserError("robot_description", joint.get("name"), f"a joint without {end} link")
    return link
