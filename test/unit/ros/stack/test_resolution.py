"""From choices to command lines; every wrong choice is refused before anything starts."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.node.share import share_directory
from physis_ros.stack.description import NodeSpec, StackSpec, load_stack
from physis_ros.stack.options import Options, parse_cameras
from physis_ros.stack.resolution import NodeRun, notes, parameter_text, resolve

CONFIG = Path(__file__).resolve().parents[4] / "config"

STACK = StackSpec(
    name="test",
    summary="",
    nodes=(
        NodeSpec(
            name="safety_node",
            must_live=True,
            parameter_files=("safety_node.param.yaml",),
            overrides={
                "robot_file": "{robot_file}",
                "rate_hz": 150.0,
                "enabled_at_start": "{simulated_robot}",
            },
        ),
        NodeSpec(name="robot_sim_node", part="simulated_robot"),
        NodeSpec(
            name="engine_node",
            part="engine",
            parameter_files=("engine_node.param.yaml",),
            overrides={"robot_file": "{robot_file}"},
            remaps={"observation": "eyes"},
        ),
    ),
)


@pytest.fixture
def share(tmp_path: Path) -> Path:
    config = tmp_path / "config"
    (config / "robots").mkdir(parents=True)
    for name in ("robots/ur5e.yaml", "robots/panda.yaml", "robots/ur5e.urdf"):
        shutil.copy(CONFIG / name, config / name)
    shutil.copy(CONFIG / "robots" / "ur5e.yaml", config / "robots" / "other.yaml")
    for node in ("safety_node", "engine_node", "buffer_node", "observation_node"):
        shutil.copy(CONFIG / f"{node}.param.yaml", config / f"{node}.param.yaml")
    return tmp_path


def names(runs: tuple[NodeRun, ...]) -> list[str]:
    return [run.node.name for run in runs]


def origins(run: NodeRun, *parameters: str) -> list[tuple[Any, str]]:
    return [(run.settings[name].value, run.settings[name].origin) for name in parameters]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return path


def test_all_run_for_a_simulated_robot_with_a_local_engine(share: Path) -> None:
    runs = resolve(STACK, Options(), share)
    assert names(runs) == ["safety_node", "robot_sim_node", "engine_node"]
    words = " ".join(runs[0].process().command[1:])
    assert words == (
        "-m physis_ros.safety.safety_node --ros-args "
        f"--params-file {share}/config/safety_node.param.yaml "
        f'-p robot_file:="{share}/config/robots/ur5e.yaml" -p rate_hz:=150.0 '
        "-p enabled_at_start:=true -r __node:=safety_node -r __ns:=/"
    )
    assert runs[0].process().must_live
    assert "observation:=eyes" in runs[2].words()


def test_each_layer_wins_over_the_one_before(share: Path, tmp_path: Path) -> None:
    """The issue's case: a section of the node in a params file loses against the command line."""
    text = "safety_node: {ros__parameters: {rate_hz: 120.0, late_s: 0.3, slow_most: 1.5}}"
    options = Options(params_files=(write(tmp_path, text),), sets=(("safety_node", "late_s", 0.1),))
    run = resolve(STACK, options, share)[0]
    assert origins(run, "robot_file", "rate_hz", "late_s", "slow_most", "status_hz") == [
        (f"{share}/config/robots/ur5e.yaml", "robot"),
        (120.0, "params file"),
        (0.1, "command line"),
        (1.5, "params file"),
        (20.0, "built-in"),
    ]
    assert not any("p.yaml" in word for word in run.words())


def test_without_a_file_the_stack_wins_over_what_is_built_in(share: Path) -> None:
    assert origins(resolve(STACK, Options(), share)[0], "rate_hz") == [(150.0, "stack")]


@pytest.mark.parametrize("engine", ["remote", "none"])
def test_no_engine_here_where_it_is_elsewhere(share: Path, engine: str) -> None:
    assert "engine_node" not in names(resolve(STACK, Options(engine=engine), share))


def test_a_real_robot_is_never_simulated(share: Path) -> None:
    runs = resolve(STACK, Options(robot="other", namespace="left/arm"), share)
    assert names(runs) == ["safety_node", "engine_node"]
    assert runs[0].parameters["robot_file"] == str(share / "config/robots/other.yaml")
    assert runs[0].namespace == "/left/arm"
    assert origins(runs[0], "enabled_at_start") == [(False, "robot")]


def test_each_robot_has_its_nodes_and_all_share_the_engine(share: Path, tmp_path: Path) -> None:
    stack = StackSpec(
        name="two",
        summary="",
        nodes=(
            NodeSpec(name="buffer_node", overrides={"stream_id": "{robot}"}),
            NodeSpec(
                name="engine_node", part="engine", parameter_files=("engine_node.param.yaml",)
            ),
        ),
        robots=("left", "right"),
    )
    path = write(tmp_path, "left: {buffer_node: {ros__parameters: {coast_s: 0.5}}}")
    options = Options(
        namespace="hall",
        params_files=(path,),
        sets=(("buffer_node", "servo_hz", 50.0), ("right/buffer_node", "lead_s", 0.1)),
    )
    left, right, engine = resolve(stack, options, share)
    labels = [run.process().name for run in (left, right, engine)]
    assert labels == ["left/buffer_node", "right/buffer_node", "engine_node"]
    assert [r.namespace for r in (left, right, engine)] == ["/hall/left", "/hall/right", "/hall"]
    assert left.parameters == {"stream_id": "left", "servo_hz": 50.0, "coast_s": 0.5}
    assert right.parameters == {"stream_id": "right", "servo_hz": 50.0, "lead_s": 0.1}
    for wrong in ("middle/buffer_node", "left/engine_node"):
        with pytest.raises(UserError, match=f"node: '{wrong}': is not in stack two"):
            resolve(stack, Options(sets=((wrong, "a", 1),)), share)
    with pytest.raises(UserError, match="controller_topic: '/a': would be one for all robots"):
        resolve(stack, Options(controller_topic="/a"), share)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(robot="ur5"), r"robot: 'ur5': is unknown; did you mean 'ur5e'\?"),
        (Options(robot="no/such.yaml"), "no/such.yaml': No such file"),
        (Options(robot="/"), "'/': Is a directory"),
        (Options(params_files=(Path("no.yaml"),)), "no.yaml': No such file"),
        (Options(sets=(("sefety_node", "a", 1),)), r"node: 'sefety_node': .*'safety_node'"),
        (Options(sets=(("safety_node", "rate", 1),)), r"safety_node.rate: 1: .*'rate_hz'.*\(set\)"),
        (
            Options(sets=(("safety_node", "enabled_at_start", 0),)),
            r"safety_node.enabled_at_start: 0: must be bool, not int \(set\)",
        ),
        (
            Options(engine="remote", sets=(("engine_node", "seed", 1),)),
            "set: 'engine_node.seed=1': this node does not run here",
        ),
        (
            Options(robot="other", remaps=("robot_sim_node:a:=b",)),
            "remap: 'robot_sim_node:a:=b': this node does not run here",
        ),
        (Options(cameras=parse_cameras("front")), "cameras: .*no node of stack test here uses it"),
        (Options(model="no_such_model"), "model: 'no_such_model': no such file; in checkpoints/"),
        (Options(urdf="none.urdf"), "none.urdf': cannot be read: No such file"),
        (
            Options(robot="panda"),
            "joint_names: 'shoulder_pan_joint, .*the robot panda has panda_joint1",
        ),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(
    share: Path, options: Options, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        resolve(STACK, options, share)
    assert "\n" not in str(caught.value)


def test_a_robot_with_other_joints_takes_its_own_model(share: Path) -> None:
    stack = StackSpec(name="robot", summary="", nodes=STACK.nodes[:1])
    assert names(resolve(stack, Options(robot="panda"), share)) == ["safety_node"]


def test_a_robot_file_without_a_limit_is_refused_with_the_file(share: Path) -> None:
    path = write(share, "joints: {a: {upper_rad: 1.0, velocity_rad_s: 1.0}}")
    with pytest.raises(UserError) as caught:
        resolve(STACK, Options(robot=str(path), engine="none"), share)
    assert str(caught.value).startswith(f"joints.a.lower_rad: None: missing in {path}")


def test_the_model_must_find_its_cameras(share: Path) -> None:
    stack = StackSpec(
        name="eyes",
        summary="",
        nodes=(
            NodeSpec(name="observation_node", parameter_files=("observation_node.param.yaml",)),
        ),
    )
    (run,) = resolve(stack, Options(cameras=parse_cameras("front=/cam/color/image_raw")), share)
    assert "camera/front/image_raw:=/cam/color/image_raw" in run.words()
    with pytest.raises(UserError, match="camera_names: 'front': the model.* has wrist"):
        resolve(stack, Options(cameras=parse_cameras("wrist")), share)


def test_choices_reach_the_words_of_a_node(share: Path) -> None:
    options = Options(
        robot="other", engine="none", controller_topic="ur/traj", log_level="debug",
        urdf=str(share / "config/robots/ur5e.urdf"), joint_prefix="left_",
    )  # fmt: skip
    words = resolve(STACK, options, share)[0].words()
    assert words[words.index("--log-level") + 1] == "debug"
    assert "joint_trajectory_controller/joint_trajectory:=ur/traj" in words
    assert 'joint_prefix:="left_"' in words
    assert f'robot_description_file:="{share}/config/robots/ur5e.urdf"' in words


def test_sections_that_no_node_reads_are_noted(share: Path, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "amcl: {ros__parameters: {a: 1}}\nsafty_node: {ros__parameters: {rate_hz: 100.0}}",
    )
    options = Options(params_files=(path,))
    runs = resolve(STACK, options, share)
    assert notes(runs, options) == [
        f"{path}: for no node of this stack: amcl, safty_node; did you mean 'safety_node'?"
    ]
    assert notes(runs, Options()) == []


def test_an_own_stack_file_may_bring_its_parameters(share: Path, tmp_path: Path) -> None:
    from physis_ros.stack.description import load_stack

    own = tmp_path / "own"
    own.mkdir()
    (own / "mine.param.yaml").write_text("/**: {ros__parameters: {servo_hz: 77.0}}")
    (own / "mine.yaml").write_text("nodes: {buffer_node: {parameter_files: [mine.param.yaml]}}")
    (run,) = resolve(load_stack(str(own / "mine.yaml"), share), Options(), share)
    assert origins(run, "servo_hz") == [(77.0, "stack")]
    assert run.parameter_files == ()


def test_parameters_set_afterwards_are_checked_too(share: Path) -> None:
    run = resolve(STACK, Options(), share)[0].with_parameters({"rate_hz": 80.0}, "pace")
    assert origins(run, "rate_hz", "robot_file")[0] == (80.0, "command line")
    with pytest.raises(UserError, match="safety_node.rate_hz: 0.0"):
        run.with_parameters({"rate_hz": 0.0}, "pace")
    engine = resolve(STACK, Options(), share)[2].with_parameters({"period_s": 0.2}, "pace")
    assert (engine.value("period_s"), engine.value("model")) == (0.2, "physis_tiny_follow")


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


POLICY = "openpi://127.0.0.1:8000"


def shipped(**choices: Any) -> tuple[NodeRun, ...]:
    root = share_directory()
    return resolve(load_stack("wam", root), Options(**{"policy": POLICY, **choices}), root)


def test_a_policy_takes_the_engines_place_under_the_contract_of_the_arm() -> None:
    runs = shipped()
    assert "engine_node" not in names(runs) and "policy_node" in names(runs)
    for node in ("policy_node", "observation_node"):
        run = next(run for run in runs if run.node.name == node)
        assert run.value("policy_contract") == "demo_arm"


@pytest.mark.parametrize(
    ("choices", "line"),
    [
        ({"policy": "host:8000"}, "policy: 'host:8000': must be SCHEME://HOST:PORT"),
        ({"policy": "http://host:8000"}, "its scheme must be one of openpi"),
        ({"policy": "", "policy_contract": "droid"}, "needs policy, too"),
        ({"engine": "remote"}, "has no place beside policy"),
        ({"robot": "ur5e"}, "policy_contract: '': name that of robot 'ur5e'"),
        ({"policy_contract": "drod"}, "did you mean 'droid'"),
        ({"policy_contract": "droid"}, "fr3_joint1"),
        ({"cameras": parse_cameras("wrist")}, "front"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_before_anything_starts(
    choices: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError) as error:
        shipped(**choices)
    assert line in str(error.value)
