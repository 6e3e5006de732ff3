"""One order of parameters: what is set later wins, and what does not fit is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.stack.description import NODE_MODULES, NODE_PARAMETERS
from physis_ros.stack.parameter_layers import (
    Layer,
    Section,
    check_shared,
    declared,
    file_layers,
    merge,
    read_sections,
    table,
    unused,
)

ROOT = Path(__file__).resolve().parents[4]
ORIGINS = ("built-in", "robot", "stack", "params file", "command line")
NAMES = ("fade_s", "lead_s", "coast_s")


def layer(values: dict[str, Any], **more: Any) -> Layer:
    return Layer(**{"origin": "stack", "where": "wam.yaml", "values": values, **more})


def sections(tmp_path: Path, text: str, name: str = "p.yaml") -> tuple[Section, ...]:
    path = tmp_path / name
    path.write_text(text)
    return read_sections(path)


def test_every_node_has_a_description_of_its_parameters() -> None:
    assert NODE_PARAMETERS.keys() == NODE_MODULES.keys()
    assert all("autostart" in declared(node) for node in NODE_PARAMETERS)


def test_the_descriptions_load_neither_ros_nor_torch_nor_mujoco() -> None:
    modules = sorted({place.partition(":")[0] for place in NODE_PARAMETERS.values()})
    code = (
        f"import sys, {', '.join(modules)}, physis_ros.stack.resolution; "
        "print(*sorted({'rclpy', 'rcl_interfaces', 'torch', 'mujoco'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ORIGINS),
            st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 1.0), max_size=3),
        ),
        max_size=8,
    )
)
def test_the_last_layer_that_names_a_parameter_sets_it(
    given_layers: list[tuple[Any, dict[str, float]]],
) -> None:
    layers = [
        Layer(
            origin=origin,
            where=str(index),
            values=values,
        )
        for index, (origin, values) in enumerate(given_layers)
    ]
    merged = merge("buffer_node", "buffer_node", layers)
    for name, setting in merged.items():
        naming = [layer for layer in layers if name in layer.values]
        if naming:
            last = naming[-1]
            assert (setting.origin, setting.where) == (last.origin, last.where)
            assert setting.value == last.values[name]
        else:
            assert (setting.origin, setting.where) == ("built-in", "default")


@pytest.mark.parametrize(
    ("node", "values", "message"),
    [
        ("safety_node", {"enabled_at_start": 0}, "enabled_at_start: 0: must be bool, not int"),
        ("buffer_node", {"servo_hz": "abc"}, "servo_hz: 'abc': must be float, not str"),
        ("buffer_node", {"servo_hz": 0.0}, "servo_hz: 0.0: must be at least 10 Hz"),
        ("buffer_node", {"servo_herz": 1.0}, "servo_herz: 1.0: no such parameter; did you mean"),
        ("buffer_node", {"use_sim_time": "yes"}, "use_sim_time: 'yes': must be bool"),
        ("buffer_node", {"joint_names": [1]}, "joint_names: 1: must be str"),
        ("buffer_node", {"window_chunks": 10**30}, "window_chunks: .*must fit in 64 bits"),
        ("engine_node", {"seed": 2**63}, "seed: 9223372036854775808: .*64 bits"),
        ("world_node", {}, "world_node.model: None: must be set"),
    ],
)
def test_what_does_not_fit_is_one_line(node: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^left/{node}\.|^{node}\.") as caught:
        merge(node, node, [layer(values)])
    assert caught.match(message)
    if values:
        assert str(caught.value).endswith("(wam.yaml)")


def test_a_section_for_many_gives_each_node_what_it_knows() -> None:
    shared = layer({"servo_hz": 50.0, "rate_hz": 100.0}, shared=True)
    assert merge("buffer_node", "b", [shared])["servo_hz"].value == 50.0
    assert "servo_hz" not in merge("safety_node", "s", [shared])


def test_a_name_in_a_section_for_many_that_no_node_knows_is_refused(tmp_path: Path) -> None:
    good, bad = sections(
        tmp_path, "/**: {ros__parameters: {servo_hz: 50.0}}\n/*: {ros__parameters: {servo: 1}}"
    )
    check_shared(good)
    with pytest.raises(UserError, match="servo: 1: no such parameter.*did you mean.*p.yaml: /\\*"):
        check_shared(bad)


@pytest.mark.parametrize(
    ("pattern", "node", "fits"),
    [
        ("safety_node", "/safety_node", True),
        ("safety_node", "/left/safety_node", True),
        ("safety_node", "/my_safety_node", False),
        ("/safety_node", "/left/safety_node", False),
        ("left/safety_node", "/left/safety_node", True),
        ("left/safety_node", "/hall/left/safety_node", True),
        ("left/safety_node", "/right/safety_node", False),
        ("/**", "/left/safety_node", True),
        ("/*", "/left/safety_node", False),
        ("/*", "/safety_node", True),
        ("/*/safety_node", "/left/safety_node", True),
        ("/**/safety_node", "/safety_node", True),
        ("/left/**", "/left/safety_node", True),
        ("/left/**", "/right/safety_node", False),
    ],
)
def test_which_nodes_a_section_is_for(pattern: str, node: str, fits: bool) -> None:
    assert Section(pattern=pattern, values={}, path=Path("p.yaml")).fits(node) is fits


def test_a_name_wins_over_a_pattern_and_a_later_file_over_an_earlier_one(tmp_path: Path) -> None:
    first = sections(
        tmp_path,
        """
/left/buffer_node: {ros__parameters: {servo_hz: 40.0, lead_s: 0.4}}
buffer_node: {ros__parameters: {servo_hz: 30.0, fade_s: 0.3}}
/**: {ros__parameters: {servo_hz: 20.0, fade_s: 0.2, coast_s: 0.2}}
""",
        "first.yaml",
    )
    second = sections(tmp_path, "/**: {ros__parameters: {lead_s: 0.9}}", "second.yaml")
    merged = merge("buffer_node", "b", file_layers([first, second], "/left/buffer_node"))
    found = {name: merged[name].value for name in ("servo_hz", "fade_s", "coast_s", "lead_s")}
    assert found == {"servo_hz": 40.0, "fade_s": 0.3, "coast_s": 0.2, "lead_s": 0.9}


def test_namespaces_may_be_nested_and_parameters_too(tmp_path: Path) -> None:
    (section,) = sections(tmp_path, "left: {safety_node: {ros__parameters: {a: {b: 1}, d: 2}}}")
    assert section.pattern == "left/safety_node"
    assert section.values == {"a.b": 1, "d": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must map node names"),
        ("[1, 2]", "must map node names"),
        ("just text", "must map node names"),
        ("a: [1", "line 1: "),
        ("a:\n\tb: 1", "line 2: "),
        ("a: 2026-13-45", "month must be in"),
        ("safety_node: {ros__parameters: {a: 1, a: 2}}", "line 1: key 'a' appears twice"),
        ("safety_node: {parameters: {a: 1}}", "safety_node"),
        ("safety_node: {}", "must hold a mapping ros__parameters"),
        ("safety_node: 3", "must be a mapping"),
        ("safety_node:", "must be a mapping"),
        ("safety_node: {ros__parameters: [1]}", "ros__parameters: must be a mapping|must be a map"),
        ("a: &a\n  b: *a", "nested too deeply"),
        ("a: " + "[" * 3000, "."),
    ],
)
def test_a_file_without_the_form_of_ros_is_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        sections(tmp_path, text)
    assert "p.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_sections(tmp_path / "none.yaml")
    with pytest.raises(UserError, match="Is a directory"):
        read_sections(tmp_path)


def test_sections_of_other_nodes_are_accepted_and_named(tmp_path: Path) -> None:
    found = sections(
        tmp_path,
        "amcl: {ros__parameters: {alpha1: 0.2}}\nsafety_node: {ros__parameters: {rate_hz: 100.0}}",
    )
    assert unused([found], ["/safety_node"]) == {str(tmp_path / "p.yaml"): ["amcl"]}


def test_the_table_says_what_set_each_value() -> None:
    merged = merge("buffer_node", "b", [layer({"lead_s": 0.5, "joint_names": ["a", "b"]})])
    lines = table({"left/buffer_node": merged})
    assert lines[0] == "left/buffer_node"
    (lead,) = [line.split() for line in lines if line.split()[0] == "lead_s"]
    assert lead == ["lead_s", "0.5", "stack", "wam.yaml"]
    (joints,) = [line for line in lines if line.split()[0] == "joint_names"]
    assert "[a, b]" in joints
    (rate,) = [line.split() for line in lines if line.split()[0] == "servo_hz"]
    assert rate == ["servo_hz", "100.0", "built-in", "default"]
