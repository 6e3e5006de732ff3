"""Simulated stacks stay on this machine unless the user chose otherwise; others use the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from physis_ros.stack.description import load_stack
from physis_ros.stack.options import Options
from physis_ros.stack.reach import ONLY_LOCALHOST, PEERS, RANGE, reach_of
from physis_ros.stack.resolution import resolve

ROOT = Path(__file__).parents[4]


def runs_of(stack: str, **options: str) -> object:
    return resolve(load_stack(stack, ROOT), Options(**options), ROOT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stack", "options"),
    [
        ("wam", {}),
        ("wam", {"engine": "none"}),
        ("robot", {}),
        ("two_robots", {}),
        ("acwm", {}),
    ],
)
def test_a_simulated_stack_stays_on_this_machine(stack: str, options: dict[str, str]) -> None:
    found = reach_of(runs_of(stack, **options), {"HOME": "/x"})  # type: ignore[arg-type]
    assert found.environment == {RANGE: "LOCALHOST"}
    assert f"{RANGE}=LOCALHOST" in found.line
    assert f"export {RANGE}=SUBNET" in found.line


@pytest.mark.parametrize(
    ("stack", "options"), [("wam", {"robot": "ur5e"}), ("robot", {"robot": "ur5e"}), ("engine", {})]
)
def test_a_robot_and_an_engine_alone_keep_the_network(stack: str, options: dict[str, str]) -> None:
    found = reach_of(runs_of(stack, **options), {})  # type: ignore[arg-type]
    assert (found.environment, found.line) == ({}, "")


@pytest.mark.parametrize(
    ("name", "value"), [(RANGE, "SUBNET"), (ONLY_LOCALHOST, "0"), (PEERS, "10.0.0.7")]
)
def test_what_the_user_chose_stays_and_is_named(name: str, value: str) -> None:
    found = reach_of(runs_of("wam"), {name: value})  # type: ignore[arg-type]
    assert found.environment == {}
    assert f"{name}={value}" in found.line


def test_a_distribution_without_discovery_ranges_gets_its_own_variable() -> None:
    found = reach_of(runs_of("wam"), {"ROS_DISTRO": "humble"})  # type: ignore[arg-type]
    assert found.environment == {ONLY_LOCALHOST: "1"}
    assert f"export {ONLY_LOCALHOST}=0" in found.line
