"""From a stack and a person's wishes to the processes to run: everything is checked here, first.

Pure but for reading the parameter files that are named. The command lines are those of a stock
ROS 2: `python -m physis_ros.timeline.buffer_node --ros-args -r __ns:=/left --params-file ...`.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from physis_core.files import nearest, parse_yaml, read_file
from physis_core.types import UserError
from physis_ros.node.packages import command_for
from physis_ros.stack.description import (
    NodeSpec,
    Respawn,
    StackSpec,
    process_label,
)

NAMESPACE = re.compile(r"(/?[A-Za-z_][A-Za-z0-9_]*)(/[A-Za-z_][A-Za-z0-9_]*)*\Z")
SIMULATED = "sim"
"""`robot: sim` runs the simulated arm; its limits are those of SIMULATED_ROBOT."""
SIMULATED_ROBOT = "ur5e"
ENGINES = ("local", "remote", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person may choose when a stack is started.

    `robot`: `sim`, or a name in `config/robots/`, or the path of such a file. `engine`: `local`
    runs the engine here, `remote` leaves it to another host of the domain, `none` runs none.
    `sets`: (node, parameter, value), the strongest of all; `left/buffer_node` is that of the robot
    `left` alone.
    """

    namespace: str = ""
    params_files: tuple[Path, ...] = ()
    robot: str = SIMULATED
    use_sim_time: bool = False
    engine: str = "local"
    sets: tuple[tuple[str, str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.namespace and not NAMESPACE.match(self.namespace):
            raise UserError("namespace", self.namespace, "must be a ROS namespace such as left/arm")
        if self.engine not in ENGINES:
            raise UserError("engine", self.engine, f"must be one of {', '.join(ENGINES)}")

    def namespace_of(self, robot: str) -> str:
        """Absolute; `robot`: its name in the stack, or empty."""
        return "/" + "/".join(filter(None, (self.namespace.strip("/"), robot)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRun:
    """A node as it will be started: its description with all choices applied."""

    node: NodeSpec
    namespace: str
    parameter_files: tuple[Path, ...]
    parameters: Mapping[str, Any]
    robot: str = ""

    @property
    def label(self) -> str:
        """What its process is called."""
        return process_label(self.node.name, self.robot)

    def arguments(self) -> list[str]:
        """Return the words after the program: the `--ros-args` of a stock ROS 2."""
        words = ["--ros-args", "-r", f"__node:={self.node.name}", "-r", f"__ns:={self.namespace}"]
        for source, target in self.node.remaps.items():
            words += ["-r", f"{source}:={target}"]
        for path in self.parameter_files:
            words += ["--params-file", str(path)]
        for name, value in self.parameters.items():
            words += ["-p", f"{name}:={parameter_text(value)}"]
        return words

    def process(self) -> ProcessSpec:
        return ProcessSpec(
            name=self.label,
            command=(sys.executable, "-m", self.node.module, *self.arguments()),
            env=self.node.env,
            must_live=self.node.must_live,
            respawn=self.node.respawn,
            robot=self.robot,
            outlives_robot=self.node.part == "simulated_robot",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A process to supervise. `env` is laid over the environment of the supervisor.

    `robot`: the one of several robots that it belongs to. `outlives_robot`: it stands for the robot
    itself, and goes on where a robot's other processes are ended.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    must_live: bool = False
    respawn: Respawn | None = None
    robot: str = ""
    outlives_robot: bool = False

    def __post_init__(self) -> None:
        if not self.command:
            raise UserError(f"{self.name}.command", self.command, "must not be empty")


def resolve(stack: StackSpec, options: Options, share: Path) -> tuple[NodeRun, ...]:
    """Return the nodes to start.

    Raises:
        UserError: a parameter file that is missing or wrong, a node that is not in the stack, an
            unknown robot.
    """
    robot_file = find_robot(options.robot, share)
    for path in options.params_files:
        check_parameter_file(path, stack)
    for node_name, _, _ in options.sets:
        stack.node(node_name)
    runs = []
    for node in stack.nodes:
        if node.part == "engine" and options.engine != "local":
            continue
        if node.part == "simulated_robot" and options.robot != SIMULATED:
            continue
        check_installed(node)
        runs += [
            _resolve_node(node, options, share, robot_file, robot)
            for robot in stack.robots_of(node)
        ]
    return tuple(runs)


def check_installed(node: NodeSpec) -> None:
    """Refuse a node of physis_lab where that package was left out of the build."""
    package = node.module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        reason = f"is part of {package}, which is not installed: {command_for(package)}"
        if node.part == "simulated_robot":
            reason += "; or name your robot in place of the simulated one"
        raise UserError("node", node.name, reason)


def _resolve_node(
    node: NodeSpec, options: Options, share: Path, robot_file: Path, robot: str
) -> NodeRun:
    files = []
    for name in node.parameter_files:
        path = share / "config" / name
        read_file(path)
        files.append(path)
    parameters: dict[str, Any] = {}
    for name, value in node.overrides.items():
        if value == "{simulated_robot}":
            value = options.robot == SIMULATED
        if isinstance(value, str):
            value = value.replace("{robot_file}", str(robot_file)).replace("{robot}", robot)
        parameters[name] = value
    if options.use_sim_time:
        parameters["use_sim_time"] = True
    for node_name, name, value in options.sets:
        if node_name in (node.name, process_label(node.name, robot)):
            parameters[name] = value
    return NodeRun(
        node=node,
        robot=robot,
        namespace=options.namespace_of(robot),
        parameter_files=(*files, *(path.absolute() for path in options.params_files)),
        parameters=parameters,
    )


def find_robot(robot: str, share: Path) -> Path:
    """Return the file of limits of a robot, given as a name or as a path."""
    name = SIMULATED_ROBOT if robot == SIMULATED else robot
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name).absolute()
        if not path.is_file():
            raise UserError("robot", robot, "there is no such file")
        return path
    path = share / "config" / "robots" / f"{name}.yaml"
    if not path.is_file():
        known = [SIMULATED, *(p.stem for p in (share / "config" / "robots").glob("*.yaml"))]
        raise UserError("robot", robot, f"is unknown{nearest(robot, known)}")
    return path


def check_parameter_file(path: Path, stack: StackSpec) -> None:
    """Check that a person's parameter file exists, has the form of ROS, and names known nodes."""
    if not path.is_file():
        raise UserError("params_file", str(path), "there is no such file")
    data = read_file(path, "params_file")
    if not isinstance(data, Mapping) or not data:
        raise UserError("params_file", str(path), "must map node names to ros__parameters")
    names = [node.name for node in stack.nodes]
    for node_name, body in _node_bodies(data):
        last = node_name.rpartition("/")[2]
        if "*" not in last and last not in names:
            raise UserError(
                "params_file", node_name, f"is no node of stack {stack.name}{nearest(last, names)}"
            )
        if not isinstance(body.get("ros__parameters"), Mapping):
            raise UserError("params_file", node_name, "must hold a mapping ros__parameters")


def _node_bodies(data: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, Mapping[Any, Any]]]:
    """Flatten namespaces: `left: {buffer_node: {ros__parameters: ..}}` is left/buffer_node."""
    bodies: list[tuple[str, Mapping[Any, Any]]] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            raise UserError("params_file", name, "must be a mapping")
        if "ros__parameters" in value or not any(isinstance(v, Mapping) for v in value.values()):
            bodies.append((name, value))
        else:
            bodies.extend(_node_bodies(value, prefix=f"{name}/"))
    return bodies


def parse_set(text: str) -> tuple[str, str, Any]:
    """Split `node.parameter=value`; the value is read as YAML, as `ros2 param set` reads it."""
    target, sign, value = text.partition("=")
    node, dot, parameter = target.partition(".")
    if not (sign and dot and node and parameter):
        raise UserError("set", text, "must be node.parameter=value")
    read = parse_yaml(value, text, "set") if value else ""
    if read is None or isinstance(read, Mapping):
        raise UserError("set", text, "its value must be a number, text, true, false or a list")
    return node, parameter, read


def parameter_text(value: Any) -> str:
    """Write a parameter's value as YAML on one line, so that it is read back with its type."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    # JSON is YAML on one line, and a float keeps its point or exponent in it.
    return json.dumps(str(value) if isinstance(value, Path) else value)
