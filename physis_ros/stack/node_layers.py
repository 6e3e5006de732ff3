"""Which layers of parameters one node of a stack has, the weakest first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from physis_ros.stack.description import NodeSpec, StackSpec, process_label
from physis_ros.stack.options import SIMULATED, Options
from physis_ros.stack.parameter_layers import (
    Layer,
    Section,
    check_shared,
    file_layers,
    read_sections,
)

_ROBOT_FILE = "{robot_file}"
_SIMULATED_ROBOT = "{simulated_robot}"


def node_layers(
    stack: StackSpec,
    node: NodeSpec,
    options: Options,
    share: Path,
    robot_file: Path,
    files: Sequence[Sequence[Section]],
    robot: str,
) -> list[Layer]:
    """All layers of a node, in the order of physis_ros.stack.parameter_layers.

    Raises:
        UserError: a parameter file of the stack that is missing or wrong.
    """
    label, full_name = process_label(node.name, robot), options.full_name(node.name, robot)
    layers = [
        dataclasses.replace(section.layer, origin="built-in", where=path.name, shared=False)
        for path in built_in_files(stack, node, share)
        for section in read_sections(path)
    ]
    layers.append(_of_robot(node, options, robot_file))
    own = [read_sections(path) for path in _own_files(stack, node)]
    for section in (section for sections in own for section in sections if section.wild):
        check_shared(section)
    layers += [dataclasses.replace(x, origin="stack") for x in file_layers(own, full_name)]
    layers.append(_of_stack(stack, node, robot))
    layers += file_layers(files, full_name)
    layers += [
        Layer(origin="command line", where=choice, values={parameter: value}, shared=True)
        for parameter, (choice, value) in options.arguments().items()
    ]
    layers += [
        Layer(origin="command line", where="set", values={name: value})
        for node_name, name, value in options.sets
        if node_name in (node.name, label)
    ]
    return layers


def built_in_files(stack: StackSpec, node: NodeSpec, share: Path) -> list[Path]:
    """The node's parameter files below config/."""
    own = {path.name for path in _own_files(stack, node)}
    return [share / "config" / name for name in node.parameter_files if Path(name).name not in own]


def _own_files(stack: StackSpec, node: NodeSpec) -> list[Path]:
    """Those beside a stack file of one's own."""
    if stack.folder is None:
        return []
    paths = [stack.folder / name for name in node.parameter_files]
    return [path for path in paths if path.exists()]


def _of_robot(node: NodeSpec, options: Options, robot_file: Path) -> Layer:
    """The values that follow from the chosen robot."""
    chosen = {_ROBOT_FILE: str(robot_file), _SIMULATED_ROBOT: options.robot == SIMULATED}
    values = {
        name: chosen[value]
        for name, value in node.overrides.items()
        if isinstance(value, str) and value in chosen
    }
    return Layer(origin="robot", where=f"robot {options.robot}", values=values)


def _of_stack(stack: StackSpec, node: NodeSpec, robot: str) -> Layer:
    values = {
        name: value.replace("{robot}", robot) if isinstance(value, str) else value
        for name, value in node.overrides.items()
        if value not in (_ROBOT_FILE, _SIMULATED_ROBOT)
    }
    return Layer(origin="stack", where=f"{stack.name}.yaml", values=values)
