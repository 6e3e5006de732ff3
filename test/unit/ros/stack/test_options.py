"""What a person may choose, as options of `physis up` and as arguments of a launch file."""

from __future__ import annotations

from pathlib import Path

import pytest

from physis_core.types import UserError
from physis_ros.stack.options import (
    CHOICES,
    Camera,
    Options,
    check_arguments,
    options_from_texts,
    parse_cameras,
    parse_set,
)


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


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"engine": "loacl"}, "engine: 'loacl'"),
        ({"namespace": "1left"}, "namespace: '1left'"),
        ({"namespace": "a//b"}, "namespace: 'a//b'"),
        ({"controller_topic": "a b"}, "controller_topic: 'a b'"),
        ({"joint_prefix": "left-"}, "joint_prefix: 'left-'"),
        ({"log_level": "loud"}, "log_level: 'loud': must be one of debug"),
        ({"remaps": ("a=b",)}, "remap: 'a=b': must be FROM:=TO"),
        ({"remaps": ("__ns:=/left",)}, "remap: '__ns:=/left': .*set namespace"),
    ],
)
def test_a_wrong_choice_is_named(choice: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Options(**choice)  # type: ignore[arg-type]


def test_a_camera_is_a_name_and_perhaps_its_drivers_topic() -> None:
    front, wrist, top = parse_cameras("front=/real/color/image_raw, wrist,top=up/compressed")
    assert front == Camera(name="front", topic="/real/color/image_raw")
    assert wrist == Camera(name="wrist")
    assert front.remaps() == (
        "camera/front/image_raw:=/real/color/image_raw",
        "camera/front/image_raw/compressed:=/real/color/image_raw/compressed",
    )
    assert wrist.remaps() == ()
    options = Options(cameras=(front, wrist, top))
    assert options.arguments()["camera_names"] == ("cameras", ["front", "wrist", "top"])
    assert options.arguments()["compressed_cameras"] == ("cameras", ["top"])


@pytest.mark.parametrize("text", ["1front", "front=", "front=a b", "a,a"])
def test_a_wrong_camera_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="cameras: "):
        parse_cameras(text)


def test_an_explicit_remap_comes_before_those_of_other_choices() -> None:
    options = Options(
        controller_topic="scaled/joint_trajectory",
        remaps=("joint_trajectory_controller/joint_trajectory:=other",),
    )
    assert options.remap_rules() == (
        "joint_trajectory_controller/joint_trajectory:=other",
        "joint_trajectory_controller/joint_trajectory:=scaled/joint_trajectory",
        "forward_position_controller/commands:=scaled/joint_trajectory",
    )


def test_arguments_of_a_launch_file_are_the_same_choices() -> None:
    assert options_from_texts({}) == Options()
    given = options_from_texts(
        {
            "namespace": "left",
            "params_file": "/a b.yaml",
            "use_sim_time": "True",
            "model": "m",
            "set": "buffer_node.servo_hz=50 engine_node.stream_ids=[a,b]",
            "remap": "joint_states:=/ur/joint_states safety_node:a:=b",
        }
    )
    assert given == Options(
        namespace="left",
        params_files=(Path("/a b.yaml"),),
        use_sim_time=True,
        model="m",
        sets=(("buffer_node", "servo_hz", 50), ("engine_node", "stream_ids", ["a", "b"])),
        remaps=("joint_states:=/ur/joint_states", "safety_node:a:=b"),
    )
    assert given.arguments() == {"model": ("model", "m"), "use_sim_time": ("use_sim_time", True)}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"use_sim_time": "yes"}, "use_sim_time: 'yes': must be true or false"),
        ({"set": "'a.b=1"}, "set: .*no closing quotation"),
        ({"set": "a=1"}, "set: 'a=1': must be node.parameter=value"),
    ],
)
def test_a_wrong_launch_argument_is_named(texts: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        options_from_texts(texts)


def test_an_argument_that_nobody_declares_is_refused() -> None:
    check_arguments({"robot": "ur5e"}, tuple(CHOICES))
    with pytest.raises(UserError, match="robto: 'ur5e': is no argument.*did you mean 'robot'"):
        check_arguments({"robto": "ur5e"}, tuple(CHOICES))
