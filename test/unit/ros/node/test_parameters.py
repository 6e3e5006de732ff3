"""Parameters from one dataclass: declared, bounded, refused by name, atomic at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import rclpy
from rclpy.node import Node
from rclpy.parameter import Parameter

from physis_core.types import UserError
from physis_ros.node.node_parameters import NodeParameters, descriptor_of
from physis_ros.node.parameters import REQUIRED, declarations, param, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    rate_hz: float = param(
        30.0, description="rate", unit="Hz", minimum=0.1, maximum=100.0, runtime=True
    )
    depth: int = param(3, description="depth", minimum=1, runtime=True)
    mode: str = param("slow", description="mode", choices=("slow", "fast"), runtime=True)
    names: tuple[str, ...] = param((), description="names")
    weights: tuple[float, ...] = param((1.0,), description="weights", minimum=0.0, runtime=True)
    blend: float = param(0.5, description="g", minimum=0.0, maximum=1.0, runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strict:
    path: str = param(REQUIRED, description="where it lies")


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeNode]:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF")
    context = rclpy.Context()
    nodes: list[Node] = []

    def make(*overrides: str) -> Node:
        words = [word for override in overrides for word in ("-p", override)]
        rclpy.init(context=context, args=["--ros-args", *words] if words else [])
        nodes.append(rclpy.create_node("settings", context=context))
        return nodes[-1]

    yield make
    for node in nodes:
        node.destroy_node()
    rclpy.shutdown(context=context)


def test_names_and_types_come_from_the_dataclass() -> None:
    found = {d.name: d for d in declarations(Settings)}
    assert list(found) == ["rate_hz", "depth", "mode", "names", "weights", "blend"]
    assert found["weights"].is_array
    assert descriptor_of(found["rate_hz"]).floating_point_range[0].to_value == 100.0
    assert descriptor_of(found["rate_hz"]).description == "rate [Hz]"
    assert descriptor_of(found["names"]).read_only
    assert not descriptor_of(found["blend"]).read_only


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"ratehz": 1.0}, "ratehz: 1.0: no such parameter; did you mean 'rate_hz'?"),
        ({"zzz": 1}, "zzz: 1: no such parameter; known: blend, depth"),
        ({"rate_hz": 0.0}, "rate_hz: 0.0: must be at least 0.1 Hz"),
        ({"rate_hz": float("nan")}, "rate_hz: nan: must be finite"),
        ({"rate_hz": "fast"}, "rate_hz: 'fast': must be float, not str"),
        ({"depth": True}, "depth: True: must be int, not bool"),
        ({"mode": "sidewards"}, "mode: 'sidewards': must be one of slow, fast"),
        ({"names": "a"}, "names: 'a': must be a list of str"),
        ({"weights": [0.5, -1.0]}, "weights: -1.0: must be at least 0"),
        ({"blend": 2.0}, "blend: 2.0: must be at most 1"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve(Settings, overrides)
    assert str(caught.value).startswith(said)


def test_a_required_parameter_must_be_set() -> None:
    with pytest.raises(UserError, match=r"path: None: must be set \(where it lies\)"):
        resolve(Strict, {})
    assert resolve(Strict, {"path": "x"}) == {"path": "x"}


def test_overrides_reach_the_dataclass(make_node: MakeNode) -> None:
    node = make_node("rate_hz:=5", "names:=[a, b]", "blend:=0.25", "weights:=[1, 2]")
    parameters = NodeParameters(node, Settings)
    assert parameters.value.rate_hz == 5.0
    assert parameters.value.names == ("a", "b")
    assert parameters.value.weights == (1.0, 2.0)
    assert parameters.value.blend == 0.25
    assert node.get_parameter("rate_hz").value == 5.0
    assert node.get_parameter("mode").value == "slow"


def test_an_unknown_override_is_refused(make_node: MakeNode) -> None:
    with pytest.raises(UserError, match="did you mean 'blend'"):
        NodeParameters(make_node("blnd:=0.5"), Settings)


def test_a_request_is_whole_or_nothing(make_node: MakeNode) -> None:
    seen: list[Settings] = []
    node = make_node()
    parameters = NodeParameters(node, Settings, on_change=seen.append)
    done = node.set_parameters_atomically(
        [Parameter("rate_hz", value=50.0), Parameter("mode", value="sidewards")]
    )
    assert not done.successful
    assert done.reason == "mode: 'sidewards': must be one of slow, fast"
    assert parameters.value == Settings()
    assert seen == []
    done = node.set_parameters_atomically(
        [Parameter("rate_hz", value=50), Parameter("blend", value=1)]
    )
    assert done.successful, done.reason
    assert parameters.value.rate_hz == 50.0
    assert parameters.value.blend == 1.0
    assert seen == [parameters.value]
    done = node.set_parameters_atomically([Parameter("weights", value=[3, 4])])
    assert done.successful, done.reason
    assert parameters.value.weights == (3.0, 4.0)


def test_read_only_parameters_stay(make_node: MakeNode) -> None:
    node = make_node()
    parameters = NodeParameters(node, Settings)
    done = node.set_parameters([Parameter("names", value=["x"])])[0]
    assert not done.successful
    assert parameters.value.names == ()


def test_what_does_not_fit_together_is_refused(make_node: MakeNode) -> None:
    def validate(new: Settings) -> None:
        if new.mode == "fast" and new.rate_hz < 20.0:
            raise UserError("rate_hz", new.rate_hz, "too low for fast")

    node = make_node()
    parameters = NodeParameters(node, Settings, validate=validate)
    assert node.set_parameters([Parameter("mode", value="fast")])[0].successful
    refused = node.set_parameters([Parameter("rate_hz", value=5.0)])[0]
    assert refused.reason == "rate_hz: 5.0: too low for fast"
    assert parameters.value.rate_hz == 30.0


def test_a_wrong_type_is_refused_at_run_time(make_node: MakeNode) -> None:
    node = make_node()
    NodeParameters(node, Settings)
    assert not node.set_parameters([Parameter("rate_hz", value="fast")])[0].successful
