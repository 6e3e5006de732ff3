"""The stack description: which nodes run together, with which parameters, and what may respawn.

Read from `config/stacks/NAME.yaml`. `physis up`, `physis demo`, the launch files and the
integration tests all use it, so there is one list of nodes.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from physis_core.files import nearest, read_file
from physis_core.types import UserError

NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
PARTS = ("robot", "engine", "policy", "simulated_robot")
NODE_MODULES = {
    "observation_node": "physis_ros.observation.observation_node",
    "engine_node": "physis_ros.engine.engine_node",
    "policy_node": "physis_ros.policies.policy_node",
    "world_node": "physis_ros.world.world_node",
    "buffer_node": "physis_ros.timeline.buffer_node",
    "safety_node": "physis_ros.safety.safety_node",
    "robot_sim_node": "physis_lab.robot.robot_sim_node",
    "recorder_node": "physis_lab.robot.recorder_node",
    "viewer_node": "physis_lab.robot.viewer_node",
}
"""Python module of each node that a stack may name; run with `python -m`."""
NODE_PARAMETERS = {
    "observation_node": "physis_ros.observation.parameters:ObservationParameters",
    "engine_node": "physis_ros.engine.parameters:EngineParameters",
    "policy_node": "physis_ros.policies.parameters:PolicyParameters",
    "world_node": "physis_ros.world.parameters:WorldParameters",
    "buffer_node": "physis_ros.timeline.parameters:BufferParameters",
    "safety_node": "physis_ros.safety.parameters:SafetyParameters",
    "robot_sim_node": "physis_lab.robot.parameters:RobotSimParameters",
    "recorder_node": "physis_lab.robot.parameters:RecorderParameters",
    "viewer_node": "physis_lab.robot.parameters:ViewerParameters",
}
"""Where each node's parameters are described. These modules import neither ROS nor torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Respawn:
    """A process that dies is restarted after `first_s`; the delay doubles each time.

    A process that ran for `healthy_s` counts as recovered: its next respawn is early again.
    """

    first_s: float = 0.5
    longest_s: float = 8.0
    healthy_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("first_s", "longest_s", "healthy_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                raise UserError(f"respawn.{name}", value, "must be a number above 0 [s]")

    def delay_s(self, failures: int) -> float:
        """Wait before the respawn that follows the given number of failures in a row (from 1)."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """One node of a stack, in a process of its own.

    `part` says when it runs: `engine` only where the engine is local, `policy` only where another
    policy's server takes the engine's place, `simulated_robot` only where the robot is simulated,
    `robot` always. `parameter_files` are below `config/`; in `overrides`
    `{robot_file}` stands for the robot's file, `{simulated_robot}` for true or false, and `{robot}`
    for the robot's name in the stack. When a `must_live` node ends, its robot's nodes end, and with
    the last robot the stack.
    """

    name: str
    part: str = "robot"
    parameter_files: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    remaps: Mapping[str, str] = field(default_factory=dict)
    must_live: bool = False
    respawn: Respawn | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """Python module, run with `python -m`."""
        return NODE_MODULES[self.name]

    @property
    def executable(self) -> str:
        """Name below lib/physis_ros/ for `ros2 run` and launch files."""
        return self.name

    def __post_init__(self) -> None:
        if not NODE_NAME.match(self.name):
            raise UserError("name", self.name, "must be a ROS name: letters, digits and _")
        if self.part not in PARTS:
            raise UserError(f"{self.name}.part", self.part, f"must be one of {', '.join(PARTS)}")
        if self.must_live and self.respawn is not None:
            raise UserError(
                f"{self.name}.respawn", "set", "a node that must live ends the stack: no respawn"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """A named set of nodes. With `robots`, those that belong to a robot run once for each of them,
    in a namespace of its name; an engine runs once and serves all."""

    name: str
    summary: str
    nodes: tuple[NodeSpec, ...]
    robots: tuple[str, ...] = ()
    folder: Path | None = None
    """Of a stack file of one's own; its parameter files may lie there."""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise UserError("nodes", [], f"stack {self.name} has none")
        seen: set[str] = set()
        for node in self.nodes:
            if node.name in seen:
                raise UserError("nodes", node.name, "is named twice")
            seen.add(node.name)
        for robot in self.robots:
            if not NODE_NAME.match(robot):
                raise UserError("robots", robot, "must be a ROS name: letters, digits and _")
            if self.robots.count(robot) > 1:
                raise UserError("robots", robot, "is named twice")

    def robots_of(self, node: NodeSpec) -> tuple[str, ...]:
        """The robots that the node runs for; one empty name where it belongs to none."""
        return ("",) if node.part == "engine" or not self.robots else self.robots

    def node(self, name: str) -> NodeSpec:
        """The node `safety_node`, or `left/safety_node` where there is a robot `left`."""
        labels = [
            label for node in self.nodes for label in dict.fromkeys((node.name, *self.labels(node)))
        ]
        if name not in labels:
            raise UserError("node", name, f"is not in stack {self.name}{nearest(name, labels)}")
        return next(node for node in self.nodes if node.name == name.rpartition("/")[2])

    def labels(self, node: NodeSpec) -> list[str]:
        """The names of the processes that run it."""
        return [process_label(node.name, robot) for robot in self.robots_of(node)]


def process_label(node: str, robot: str) -> str:
    """`left/safety_node`; without a robot `safety_node`."""
    return f"{robot}/{node}" if robot else node


def stack_names(share: Path) -> list[str]:
    return sorted(path.stem for path in (share / "config" / "stacks").glob("*.yaml"))


def is_path(text: str) -> bool:
    """Whether a stack or robot is named by the path of its file, not by a name in `config/`."""
    return "/" in text or text.endswith((".yaml", ".yml"))


def load_stack(name: str, share: Path) -> StackSpec:
    """Read `config/stacks/NAME.yaml` below the share directory, or the file at the path `name`.

    Raises:
        UserError: unknown stack, unknown key (with the nearest valid one), value of a wrong type.
    """
    if is_path(name):
        own = Path(name).expanduser().absolute()
        spec = parse_stack(own.stem, read_file(own, "stack"), where=str(own))
        return dataclasses.replace(spec, folder=own.parent)
    known = stack_names(share)
    if name not in known:
        raise UserError("stack", name, f"is unknown{nearest(name, known)}")
    path = share / "config" / "stacks" / f"{name}.yaml"
    return parse_stack(name, read_file(path), where=path.name)


def parse_stack(name: str, data: Any, where: str) -> StackSpec:
    mapping = _mapping(data, where, {"summary", "nodes", "robots"})
    nodes = mapping.get("nodes")
    if not isinstance(nodes, Mapping):
        raise UserError(f"{where}: nodes", nodes, "must map node names to their settings")
    summary = _typed(mapping.get("summary", ""), str, f"{where}: summary")
    specs = tuple(_parse_node(str(node), data, where) for node, data in nodes.items())
    robots = tuple(
        _typed(robot, str, f"{where}: robots")
        for robot in _typed(mapping.get("robots", []), list, f"{where}: robots")
    )
    return StackSpec(name=name, summary=summary, nodes=specs, robots=robots)


def _parse_node(name: str, data: Any, where: str) -> NodeSpec:
    place = f"{where}: {name}"
    known = {item.name for item in dataclasses.fields(NodeSpec)} - {"name"}
    mapping = dict(_mapping({} if data is None else data, place, known))
    for key in ("overrides", "remaps", "env"):
        if key in mapping:
            mapping[key] = dict(_mapping(mapping[key], f"{place}.{key}", None))
    for key in ("remaps", "env"):
        for inner, value in mapping.get(key, {}).items():
            _typed(value, str, f"{place}.{key}.{inner}")
    if "parameter_files" in mapping:
        files = _typed(mapping["parameter_files"], list, f"{place}.parameter_files")
        mapping["parameter_files"] = tuple(
            _typed(item, str, f"{place}.parameter_files") for item in files
        )
    if "must_live" in mapping:
        _typed(mapping["must_live"], bool, f"{place}.must_live")
    if mapping.get("respawn") is not None:
        fields = {item.name for item in dataclasses.fields(Respawn)}
        respawn = {} if mapping["respawn"] is True else mapping["respawn"]
        if respawn is False:
            mapping["respawn"] = None
        else:
            mapping["respawn"] = Respawn(**_mapping(respawn, f"{place}.respawn", fields))
    return NodeSpec(name=name, **mapping)


def _mapping(data: Any, place: str, known: Collection[str] | None) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise UserError(place, data, "must be a mapping")
    for key in data:
        if not isinstance(key, str):
            raise UserError(place, key, "a key must be text")
        if known is not None and key not in known:
            raise UserError(place, key, f"is no key here{nearest(key, known)}")
    return data


def _typed(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, kind):
        raise UserError(place, value, f"must be {kind.__name__}, not {type(value).__name__}")
    return value
