"""Loads a robot's limits from the sources that a node's parameters name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from physis_core.model.description import check_names
from physis_core.types import UserError
from physis_ros.node.share import share_directories
from physis_ros.robot.joint_limits import JointLimit, RobotLimits, load_limits_file, robot_limits
from physis_ros.robot.urdf_limits import limits_from_urdf


def robot_file_path(robot_file: str) -> Path:
    """A path as it is, or the file of that name in `config/robots/`.

    Raises:
        UserError: neither exists; the message names the robots that are there.
    """
    given = Path(robot_file)
    if given.is_file():
        return given
    known: set[str] = set()
    for share in share_directories():
        folder = share / "config" / "robots"
        named = folder / f"{given.stem}.yaml"
        if given.parent == Path() and named.is_file():
            return named
        known.update(path.stem for path in folder.glob("*.yaml"))
    there = ", ".join(sorted(known)) or "none"
    raise UserError("robot_file", robot_file, f"no such file and no such robot; robots: {there}")


def check_robot_joints(joints: tuple[str, ...], robot_file: str) -> None:
    """Compare a model's joints with those of a robot's file; an empty name is not checked.

    Raises:
        UserError: naming every joint that the robot lacks.
    """
    if robot_file:
        path = robot_file_path(robot_file)
        present = tuple(load_limits_file(path))
        check_names("joint_names", joints, present, where=f"the robot {path.stem}")


def load_robot_limits(
    *,
    joint_names: Sequence[str],
    robot_file: str,
    robot_description: str,
    robot_description_file: str,
) -> RobotLimits:
    """Limits from the robot's YAML, a URDF text and a URDF file; an empty source is skipped.

    Without `joint_names` the robot has the joints of its YAML, in the order of that file.

    Raises:
        UserError: a source is wrong or missing, or a joint has no complete limits.
    """
    sources: list[dict[str, JointLimit]] = []
    names = tuple(joint_names)
    if robot_file:
        from_yaml = load_limits_file(robot_file_path(robot_file))
        sources.append(from_yaml)
        names = names or tuple(from_yaml)
    if robot_description:
        sources.append(limits_from_urdf(robot_description))
    if robot_description_file:
        try:
            text = Path(robot_description_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                "robot_description_file", robot_description_file, f"cannot be read: {error}"
            ) from None
        sources.append(limits_from_urdf(text))
    if not sources:
        raise UserError(
            "robot_file", robot_file, "no limits: set robot_file or robot_description, or both"
        )
    return robot_limits(names, sources)
