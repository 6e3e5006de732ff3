"""From a stack and a person's wishes to the processes to run: everything is checked here, first.

Pure but for reading the files that are named. The command lines are those of a stock ROS 2:
`python -m physis_ros.timeline.buffer_node --ros-args -r __ns:=/left --params-file ... -p ...`.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from physis_core.files import nearest
from physis_core.model.description import check_names
from physis_core.model.registry import describe
from physis_core.types import UserError
from physis_ros.node.model_file import named_model
from physis_ros.node.packages import command_for
from physis_ros.robot.limits_files import load_limits_file
from physis_ros.robot.robot_files import check_robot_joints, load_robot_limits
from physis_ros.stack.description import NodeSpec, Respawn, StackSpec, is_path, process_label
from physis_ros.stack.node_layers import built_in_files, node_layers
from physis_ros.stack.options import SIMULATED, SIMULATED_ROBOT, Options, remapped_node
from physis_ros.stack.parameter_layers import (
    Layer,
    Section,
    Setting,
    check_shared,
    checked,
    declared,
    merge,
    read_sections,
    unused,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRun:
    """A node as it will be started: its description with all choices applied.

    `parameter_files` hold built-in values; what comes after them in the order of parameters is in
    `settings`, which hold every parameter.
    """

    node: NodeSpec
    namespace: str
    settings: Mapping[str, Setting]
    parameter_files: tuple[Path, ...] = ()
    remaps: tuple[str, ...] = ()
    log_level: str = ""
    robot: str = ""

    @property
    def label(self) -> str:
        """What its process is called."""
        return process_label(self.node.name, self.robot)

    @property
    def full_name(self) -> str:
        return f"{self.namespace.rstrip('/')}/{self.node.name}"

    @property
    def parameters(self) -> dict[str, Any]:
        """The values that are not built in."""
        return {
            name: setting.value
            for name, setting in self.settings.items()
            if setting.origin != "built-in"
        }

    def value(self, parameter: str) -> Any:
        """None where the node has no such parameter."""
        setting = self.settings.get(parameter)
        return None if setting is None else setting.value

    def with_parameters(self, values: Mapping[str, Any], where: str) -> NodeRun:
        """The same run, these values set as by the command line."""
        layer = Layer(origin="command line", where=where, values=values)
        chosen = checked(self.node.name, self.label, layer)
        return dataclasses.replace(self, settings={**self.settings, **chosen})

    def words(self) -> list[str]:
        """The `--ros-args` of a stock ROS 2 but for name and namespace."""
        words = ["--ros-args"]
        for rule in self.remaps:
            words += ["-r", rule]
        for path in self.parameter_files:
            words += ["--params-file", str(path)]
        for name, value in self.parameters.items():
            words += ["-p", f"{name}:={parameter_text(value)}"]
        if self.log_level:
            words += ["--log-level", self.log_level]
        return words

    def process(self) -> ProcessSpec:
        names = ("-r", f"__node:={self.node.name}", "-r", f"__ns:={self.namespace}")
        command = (sys.executable, "-m", self.node.module, *self.words(), *names)
        return ProcessSpec(
            name=self.label,
            command=command,
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
        UserError: a file that is missing or wrong, a node that is not in the stack or does not run
            here, an unknown robot, a parameter that is unknown or does not fit, or a model for
            other joints or cameras.
    """
    robot_file = find_robot(options.robot, share)
    files = [read_sections(path.expanduser()) for path in options.params_files]
    for sections in files:
        for section in filter(lambda s: s.wild, sections):
            check_shared(section)
    started = [node for node in stack.nodes if _runs_here(node, options)]
    _check_choices(stack, started, options)
    runs = []
    for node in started:
        check_installed(node)
        runs += [
            _resolve_node(stack, node, options, share, robot_file, files, robot)
            for robot in stack.robots_of(node)
        ]
    for run in runs:
        check_model(run)
        check_limits(run)
    return tuple(runs)


def notes(runs: Sequence[NodeRun], options: Options) -> list[str]:
    """What a person should know of the choices before the nodes start."""
    files = [read_sections(path.expanduser()) for path in options.params_files]
    names = [run.full_name for run in runs]
    lines = []
    for path, patterns in unused(files, names).items():
        close = [run.node.name for run in runs for p in patterns if _misspelt(p, run.node.name)]
        hint = f"; did you mean {close[0]!r}?" if close else ""
        lines.append(f"{path}: for no node of this stack: {', '.join(patterns)}{hint}")
    return lines


def _misspelt(pattern: str, node: str) -> bool:
    last = pattern.rpartition("/")[2]
    return last != node and "did you mean" in nearest(last, [node]) and last.endswith("_node")


def _runs_here(node: NodeSpec, options: Options) -> bool:
    if node.part == "engine":
        return options.engine == "local" and not options.policy
    if node.part == "policy":
        return bool(options.policy)
    return node.part != "simulated_robot" or options.robot == SIMULATED


def _check_choices(stack: StackSpec, started: Sequence[NodeSpec], options: Options) -> None:
    """Refuse a choice that no node here would follow."""
    for node_name, name, value in options.sets:
        if stack.node(node_name) not in started:
            raise UserError("set", f"{node_name}.{name}={value}", "this node does not run here")
    for rule in options.remaps:
        name = remapped_node(rule)
        if name and stack.node(name) not in started:
            raise UserError("remap", rule, "this node does not run here")
    for parameter, (choice, value) in options.arguments().items():
        if not any(parameter in declared(node.name) for node in started):
            raise UserError(choice, value, f"no node of stack {stack.name} here uses it")
    if stack.robots and options.controller_topic.startswith("/"):
        raise UserError(
            "controller_topic",
            options.controller_topic,
            f"would be one for all robots ({', '.join(stack.robots)}): leave out the first /",
        )


def check_installed(node: NodeSpec) -> None:
    """Refuse a node of physis_lab where that package was left out of the build."""
    package = node.module.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        reason = f"is part of {package}, which is not installed: {command_for(package)}"
        if node.part == "simulated_robot":
            reason += "; or name your robot in place of the simulated one"
        raise UserError("node", node.name, reason)


def check_model(run: NodeRun) -> None:
    """Refuse a model, or a policy's contract, for other joints or cameras than the robot's, where
    both are known.

    Raises:
        UserError: naming the joints or cameras that are missing.
    """
    if name := run.value("policy_contract"):
        # A robot without a policy's server has no msgspec.
        from physis_ros.robot.policy_contract import load_policy_contract

        contract = load_policy_contract(name)
        joints, needed = contract.actions.joints, contract.camera_names
    elif name := run.value("model"):
        described = describe(named_model(name))
        joints, needed = described.joints, described.camera_names
    else:
        return
    if robot_file := run.value("robot_file"):
        check_robot_joints(joints, robot_file, run.value("joint_prefix") or "")
    cameras = run.value("camera_names")
    if cameras:
        where = f"the choice {run.settings['camera_names'].where}"
        check_names("camera_names", needed, cameras, where=where)


def check_limits(run: NodeRun) -> None:
    """Refuse a robot whose limits are wrong or not complete; those of a topic come later."""
    if run.value("robot_description_topic") == "":
        load_robot_limits(
            joint_names=run.value("joint_names"),
            robot_file=run.value("robot_file"),
            robot_description=run.value("robot_description"),
            robot_description_file=run.value("robot_description_file"),
            joint_limits_file=run.value("joint_limits_file"),
            joint_prefix=run.value("joint_prefix"),
        )


def _resolve_node(
    stack: StackSpec,
    node: NodeSpec,
    options: Options,
    share: Path,
    robot_file: Path,
    files: Sequence[Sequence[Section]],
    robot: str,
) -> NodeRun:
    label, namespace = process_label(node.name, robot), options.namespace_of(robot)
    layers = node_layers(stack, node, options, share, robot_file, files, robot)
    return NodeRun(
        node=node,
        robot=robot,
        namespace=namespace,
        settings=merge(node.name, label, layers),
        parameter_files=tuple(built_in_files(stack, node, share)),
        # ROS takes the first rule that fits.
        remaps=(*options.remap_rules(), *(f"{a}:={b}" for a, b in node.remaps.items())),
        log_level=options.log_level,
    )


def find_robot(robot: str, share: Path) -> Path:
    """Return the file of limits of a robot, given as a name or as a path.

    Raises:
        UserError: there is none, or it holds no limits.
    """
    name = SIMULATED_ROBOT if robot == SIMULATED else robot
    if is_path(name):
        path = Path(name).expanduser().absolute()
    else:
        folder = share / "config" / "robots"
        path = folder / f"{name}.yaml"
        if not path.is_file():
            known = [SIMULATED, *(found.stem for found in folder.glob("*.yaml"))]
            raise UserError("robot", robot, f"is unknown{nearest(robot, known)}")
    load_limits_file(path)
    return path


def parameter_text(value: Any) -> str:
    """Write a parameter's value as YAML on one line, so that it is read back with its type."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf"}.get(str(value), ".nan")
    # JSON is YAML on one line, and a float keeps its point or exponent in it.
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
