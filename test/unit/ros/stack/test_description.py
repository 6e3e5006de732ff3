"""Stack descriptions: what is read, and what is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from physis_core.files import read_file
from physis_core.types import UserError
from physis_ros.node.share import share_directory
from physis_ros.stack.description import NodeSpec, load_stack, parse_stack, stack_names


def parse(text: str) -> Any:
    return parse_stack("test", yaml.safe_load(text), where="test.yaml")


@pytest.mark.parametrize("name", stack_names(share_directory()))
def test_the_stacks_that_go_with_us_are_whole(name: str) -> None:
    share = share_directory()
    stack = load_stack(name, share)
    assert stack.summary
    for node in stack.nodes:
        for file in node.parameter_files:
            assert (share / "config" / file).is_file(), f"{name}: {node.name}: {file}"
        assert (share / Path(*node.module.split("."))).with_suffix(".py").is_file(), node.name


def test_wam_holds_safety_as_a_node_that_must_live_and_respawns_the_engine() -> None:
    stack = load_stack("wam", share_directory())
    assert stack.node("safety_node").must_live
    assert stack.node("engine_node").respawn is not None
    assert stack.node("engine_node").module == "physis_ros.engine.engine_node"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: {a: {musst_live: true}}", r"test.yaml: a: 'musst_live': .*'must_live'"),
        ("nods: {}", r"test.yaml: 'nods': .*'nodes'"),
        ("nodes: []", "must map node names"),
        ("nodes: {}", "has none"),
        ("[]", "must be a mapping"),
        ("nodes: {a: {part: motor}}", "a.part: 'motor': must be one of"),
        ("nodes: {a: {must_live: 3}}", "a.must_live: 3: must be bool"),
        ("nodes: {a: {respawn: {first: 1}}}", r"respawn: 'first': .*'first_s'"),
        ("nodes: {a: {respawn: {first_s: no}}}", "respawn.first_s: False"),
        ("nodes: {a: {must_live: true, respawn: true}}", "no respawn"),
        ("nodes: {a: {remaps: {x: 1}}}", "a.remaps.x: 1: must be str"),
        ("nodes: {a: {parameter_files: x}}", "must be list"),
        ("nodes: {'a b': {}}", "'a b': must be a ROS name"),
        ("{nodes: {a: {}}, robots: left}", "robots: 'left': must be list"),
        ("{nodes: {a: {}}, robots: [a/b]}", "robots: 'a/b': must be a ROS name"),
        ("{nodes: {a: {}}, robots: [left, left]}", "robots: 'left': is named twice"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse(text)


def test_an_unknown_stack_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"stack: 'wan': is unknown; did you mean 'wam'\?"):
        load_stack("wan", share_directory())


def test_an_unknown_node_is_refused_with_the_nearest() -> None:
    stack = parse("nodes: {buffer_node: , safety_node: }")
    with pytest.raises(UserError, match=r"node: 'bufer_node': .*'buffer_node'"):
        stack.node("bufer_node")


def test_yaml_that_does_not_parse_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb: [1, 2\nc: 3\n")
    with pytest.raises(UserError, match="line 3: "):
        read_file(path)


def test_a_node_name_twice_in_a_stack_is_refused() -> None:
    with pytest.raises(UserError, match="named twice"):
        type(load_stack("wam", share_directory()))(
            name="s", summary="", nodes=(NodeSpec(name="a"), NodeSpec(name="a"))
        )
