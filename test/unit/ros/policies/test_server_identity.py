from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from physis_core.types import UserError
from physis_ros.policies.server_identity import changed_metadata, misfit, places_of
from physis_ros.policies.wire import inputs_that_are_taken, parse_address
from physis_ros.robot.policy_contract import load_policy_contract


def test_another_model_is_named() -> None:
    before = {"model": "a", "reset_pose": np.zeros(3)}
    assert changed_metadata(before, {"model": "a", "reset_pose": np.zeros(3)}) == ""
    assert changed_metadata(before, {**before, "model": "b"}) == "model: 'a' before, 'b' now"
    assert "reset_pose" in changed_metadata(before, {**before, "reset_pose": np.ones(3)})
    assert changed_metadata({}, {"x": 1}) == "x: None before, 1 now"


@pytest.mark.parametrize(
    ("says", "line"),
    [
        ({}, ""),
        ({"action_horizon": 8, "action_dim": 6, "step_s": 0.05}, ""),
        ({"action_horizon": 4}, "action_horizon: 4: the contract wants 8 points"),
        ({"action_dim": 7}, "action_dim: 7: the contract has 6 columns"),
        ({"step_s": 0.1}, "step_s: 0.1: the contract has 0.05"),
        ({"joints": ["elbow_joint"]}, "shoulder_pan_joint"),
        ({"protocol": "dreamzero_async"}, "is not spoken"),
    ],
)
def test_a_server_that_does_not_fit_is_named(says: dict[str, Any], line: str) -> None:
    found = misfit(load_policy_contract("demo_arm"), says)
    assert line in found and bool(found) == bool(line)


def test_a_server_says_how_many_requests_it_takes() -> None:
    assert places_of({}, wanted=0) == 1
    assert places_of({"max_in_flight": 4}, wanted=0) == 4
    assert places_of({"max_in_flight": 4}, wanted=2) == 2
    assert places_of({}, wanted=8) == 1
    assert places_of({"max_in_flight": "many"}, wanted=0) == 1


def test_inputs_are_those_that_the_server_lists() -> None:
    assert inputs_that_are_taken({"inputs": ["lookahead_s"]}) == {"lookahead_s"}
    assert inputs_that_are_taken({"inputs": "lookahead_s"}) == frozenset()


def test_an_address_is_checked() -> None:
    found = parse_address("openpi://host:8777/v1/robot")
    shown = (found.scheme, found.host, found.port, found.path)
    assert shown == ("openpi", "host", 8777, "/v1/robot")
    for wrong in ("host:8000", "openpi://host", "openpi://host:99999", "http://host:1", ""):
        with pytest.raises(UserError, match="policy"):
            parse_address(wrong)
