"""From choices to command lines; every wrong choice is refused before anything starts."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.stack.description import NodeSpec, StackSpec
from physis_ros.stack.resolution import (
    NodeRun,
    Options,
    check_parameter_file,
    parameter_text,
    parse_set,
    resolve,
)

STACK = StackSpec(
    name="test",
    summary="",
    nodes=(
        NodeSpec(
            name="safety_node",
            must_live=True,
            parameter_files=("safety_node.param.yaml",),
            overrides={"robot_file": "{robot_file}"},
        ),
        NodeSpec(name="robot_sim_node", part="simulated_robot"),
        NodeSpec(name="engine_node", part="engine", remaps={"observation": "eyes"}),
    ),
)


@pytest.fixture
def share(tmp_path: Path) -> Path:
    config = tmp_path / "config"
    (config / "robots").mkdir(parents=True)
    (config / "robots" / "ur5e.yaml").write_text("{}")
    (config / "robots" / "other.yaml").write_text("{}")
    (config / "safety_node.param.yaml").write_text("/**: {ros__parameters: {}}")
    return tmp_path


def names(runs: tuple[NodeRun, ...]) -> list[str]:
    return [run.node.name for run in runs]


def test_all_run_for_a_simulated_robot_with_a_local_engine(share: Path) -> None:
    runs = resolve(STACK, Options(), share)
    assert names(runs) == ["safety_node", "robot_sim_node", "engine_node"]
    words = " ".join(runs[0].process().command[1:])
    assert words == (
        "-m physis_ros.safety.safety_node --ros-args -r __node:=safety_node -r __ns:=/ "
        f"--params-file {share}/config/safety_node.param.yaml "
        f'-p robot_file:="{share}/config/robots/ur5e.yaml"'
    )
    assert runs[0].process().must_live
    assert "observation:=eyes" in runs[2].arguments()


@pytest.mark.parametrize("engine", ["remote", "none"])
def test_no_engine_here_where_it_is_elsewhere(share: Path, engine: str) -> None:
    assert "engine_node" not in names(resolve(STACK, Options(engine=engine), share))


def test_a_real_robot_is_never_simulated(share: Path) -> None:
    runs = resolve(STACK, Options(robot="other", namespace="left/arm"), share)
    assert names(runs) == ["safety_node", "engine_node"]
    assert runs[0].parameters["robot_file"] == str(share / "config/robots/other.yaml")
    assert runs[0].namespace == "/left/arm"


def test_what_is_set_by_hand_is_the_strongest_and_comes_last(share: Path) -> None:
    options = Options(
        use_sim_time=True,
        sets=(("safety_node", "robot_file", "x"), ("safety_node", "rate_hz", 2.0)),
    )
    run = resolve(STACK, options, share)[0]
    assert run.parameters == {"robot_file": "x", "use_sim_time": True, "rate_hz": 2.0}
    assert run.arguments()[-1] == "rate_hz:=2.0"


def test_each_robot_has_its_nodes_and_all_share_the_engine(share: Path) -> None:
    stack = StackSpec(
        name="two",
        summary="",
        nodes=(
            NodeSpec(name="buffer_node", overrides={"stream_id": "{robot}"}),
            NodeSpec(name="engine_node", part="engine"),
        ),
        robots=("left", "right"),
    )
    options = Options(
        namespace="hall",
        sets=(("buffer_node", "servo_hz", 50.0), ("right/buffer_node", "lead_s", 0.1)),
    )
    left, right, engine = resolve(stack, options, share)
    labels = [run.process().name for run in (left, right, engine)]
    assert labels == ["left/buffer_node", "right/buffer_node", "engine_node"]
    assert [r.namespace for r in (left, right, engine)] == ["/hall/left", "/hall/right", "/hall"]
    assert left.parameters == {"stream_id": "left", "servo_hz": 50.0}
    assert right.parameters == {"stream_id": "right", "servo_hz": 50.0, "lead_s": 0.1}
    for wrong in ("middle/buffer_node", "left/engine_node"):
        with pytest.raises(UserError, match=f"node: '{wrong}': is not in stack two"):
            resolve(stack, Options(sets=((wrong, "a", 1),)), share)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"engine": "loacl"}, "engine: 'loacl'"),
        ({"namespace": "1left"}, "namespace: '1left'"),
        ({"namespace": "a//b"}, "namespace: 'a//b'"),
    ],
)
def test_a_wrong_choice_is_named(choice: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(robot="ur5"), r"robot: 'ur5': is unknown; did you mean 'ur5e'\?"),
        (Options(robot="no/such.yaml"), "robot: 'no/such.yaml': there is no such file"),
        (Options(params_files=(Path("no.yaml"),)), "params_file: 'no.yaml': there is no such file"),
        (Options(sets=(("sefety_node", "a", 1),)), r"node: 'sefety_node': .*'safety_node'"),
    ],
)
def test_what_is_not_there_is_refused(share: Path, options: Options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(STACK, options, share)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must map node names"),
        ("a: [1", "params|file"),
        ("safty_node: {ros__parameters: {a: 1}}", r"'safty_node': .*'safety_node'"),
        ("safety_node: {parameters: {a: 1}}", "safety_node"),
        ("safety_node: 3", "must be a mapping"),
        ("left: {safty_node: {ros__parameters: {a: 1}}}", "left/safty_node"),
    ],
)
def test_a_wrong_parameter_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        check_parameter_file(path, STACK)


@pytest.mark.parametrize(
    "text",
    [
        "safety_node: {ros__parameters: {a: 1}}",
        "/**: {ros__parameters: {a: {b: 1}}}",
        "left: {safety_node: {ros__parameters: {a: 1}}}",
        "/left/safety_node: {ros__parameters: {}}",
        "/**/engine_node: {ros__parameters: {}}",
    ],
)
def test_a_right_parameter_file_passes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    check_parameter_file(path, STACK)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n.p=1", 1),
        ("n.p=1.5", 1.5),
        ("n.p=1e-3", 0.001),
        ("n.p=true", True),
        ("n.p=a=b", "a=b"),
        ("n.p=", ""),
        ("n.p=[1.0, 2.0]", [1.0, 2.0]),
    ],
)
def test_values_are_read_with_their_type(text: str, value: object) -> None:
    assert parse_set(text) == ("n", "p", value)


def test_a_nested_parameter_may_be_set() -> None:
    assert parse_set("n.a.b=1") == ("n", "a.b", 1)


@pytest.mark.parametrize("text", ["n", "n=1", ".p=1", "n.=1", "n.p=[1", "n.p={a: 1}"])
def test_a_setting_without_its_form_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="set"):
        parse_set(text)


@given(
    st.one_of(
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.text(st.characters(codec="ascii", exclude_categories=["Cc"])),
        st.floats(allow_nan=False),
        st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=4),
    )
)
def test_a_parameter_written_is_read_back_with_value_and_type(value: object) -> None:
    back = yaml.safe_load(parameter_text(value))
    if isinstance(back, str) and isinstance(value, float):
        back = float(back)  # an exponent without a point, which ROS reads as a number
    if isinstance(value, list):
        back = [float(item) for item in back]
    assert back == value
    assert type(back) is type(value)


def test_what_is_not_finite_is_written_as_yaml() -> None:
    assert parameter_text(math.inf) == ".inf"
    assert parameter_text(-math.inf) == "-.inf"
