"""Loads a robot's limits from the sources that a node's parameters name."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from physis_core.model.description import check_names
from physis_core.types import UserError
from physis_ros.node.share import share_directories
from physis_ros.robot.joint_limits import JointLimit, RobotLimits, robot_limits
from physis_ros.robot.joint_readings import with_prefix
from physis_ros.robot.limits_files import load_limits_file
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


def check_robot_joints(joints: tuple[str, ...], robot_file: str, joint_prefix: str = "") -> None:
    """Compare a model's joints with those of a robot's file; an empty name is not checked.

    `joint_prefix` is left out of the robot's names.

    Raises:
        UserError: naming every joint that the robot lacks.
    """
    if robot_file:
        path = robot_file_path(robot_file)
        present = tuple(name.removeprefix(joint_prefix) for name in load_limits_file(path))
        check_names("joint_names", joints, present, where=f"the robot {path.stem}")


def load_robot_limits(
    *,
    joint_names: Sequence[str] = (),
    robot_file: str = "",
    robot_description: str = "",
    published_description: str = "",
    robot_description_file: str = "",
    joint_limits_file: str = "",
    joint_prefix: str = "",
) -> RobotLimits:
    """Limits from the robot's YAML, URDF texts, a URDF file and MoveIt's joint_limits.yaml; an
    empty source is skipped, and the tightest limit wins.

    Without `joint_names` the robot has the joints of its YAML, in the order of that file. Names get
    `joint_prefix` where they have not got it.

    Raises:
        UserError: a source is wrong or missing, or a joint has no complete limits.
    """
    sources: dict[str, dict[str, JointLimit]] = {}
    names = tuple(with_prefix(name, joint_prefix) for name in joint_names)
    if robot_file:
        path = robot_file_path(robot_file)
        sources[str(path)] = _prefixed(load_limits_file(path), joint_prefix)
        names = names or tuple(sources[str(path)])
    bare = {name.removeprefix(joint_prefix) for name in names}
    texts = {"robot_description": robot_description, "the topic's URDF": published_description}
    for origin, text in texts.items():
        if text:
            found = limits_from_urdf(text, {*names, *bare})
            sources[origin] = _prefixed(found, joint_prefix)
    if robot_description_file:
        found = _from_urdf_file(robot_description_file, {*names, *bare})
        sources[robot_description_file] = _prefixed(found, joint_prefix)
    if joint_limits_file:
        sources[joint_limits_file] = _prefixed(load_limits_file(joint_limits_file), joint_prefix)
    if not sources:
        raise UserError(
            "robot_file", robot_file, "no limits: set robot_file or robot_description, or both"
        )
    return robot_limits(names, sources.values(), where=" and ".join(sources))


def _prefixed(limits: Mapping[str, JointLimit], joint_prefix: str) -> dict[str, JointLimit]:
    """Under the names of the robot; of two that become one, the one that has the prefix stays."""
    longer = {with_prefix(name, joint_prefix): limit for name, limit in limits.items()}
    return {**longer, **{name: limits[name] for name in limits if name in longer}}


def read_description(path: str) -> str:
    """The text of a URDF file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError("robot_description_file", path, "is not UTF-8 text") from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise UserError("robot_description_file", path, reason) from None


def _from_urdf_file(path: str, names: Container[str]) -> dict[str, JointLimit]:
    text = read_description(path)
    try:
        return limits_from_urdf(text, names)
    except UserError as error:
        raise UserError(error.field, error.value, f"{error.reason} (in {path})") from None
