from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.decoding import decode
from physis_core.model.registry import describe
from physis_core.types import UserError
from physis_ros.node.model_file import named_model
from physis_ros.policies.payload import (
    LastChunk,
    RobotInputs,
    actions_of,
    extra_inputs,
    inputs_of,
    left_over,
    positions_of,
    reply_of,
    request_of,
)
from physis_ros.robot.policy_contract import (
    PolicyContract,
    contract_of_model,
    load_policy_contract,
)
from physis_ros.robot.robot_files import check_robot_joints

ROOT = Path(__file__).parents[4]
NAMES = sorted(path.stem for path in (ROOT / "config" / "policies").glob("*.yaml"))
SMALL: dict[str, Any] = {
    "summary": "two joints and a gripper",
    "period_s": 0.1,
    "image_height": 2,
    "image_width": 4,
    "images": [
        {"camera": "front", "key": ["images", "front"], "channels_first": True, "canvas": [4, 4]},
        {"camera": "wrist", "key": "wrist"},
    ],
    "state": [
        {"key": "state", "joints": ["a", "b"], "unit": "deg"},
        {"key": "state", "joints": ["grip"], "at_0": 0.8, "at_1": 0.0},
    ],
    "instruction": "prompt",
    "actions": {
        "horizon": 3,
        "step_s": 0.05,
        "parts": [
            {"key": "actions", "joints": ["b", "a"], "unit": "deg"},
            {"key": "actions", "joints": ["grip"], "at_0": 0.8, "at_1": 0.0},
        ],
    },
}


def contract(change: Callable[[dict[str, Any]], None] = lambda _: None) -> PolicyContract:
    import copy

    values = copy.deepcopy(SMALL)
    change(values)
    return decode(values, PolicyContract, "contract")


def inputs() -> RobotInputs:
    return RobotInputs(
        images={
            "front": np.full((2, 4, 3), 7, dtype=np.uint8),
            "wrist": np.full((2, 4, 3), 9, dtype=np.uint8),
        },
        joints={"b": math.pi / 2, "a": math.pi, "grip": 0.6, "other": 1.0},
        instruction="hold",
    )


def test_a_request_has_keys_order_units_and_layout_of_the_contract() -> None:
    request = request_of(contract(), inputs())
    assert set(request) == {"images", "wrist", "state", "prompt"}
    np.testing.assert_allclose(request["state"], [180.0, 90.0, 0.25], rtol=1e-6)
    front = request["images"]["front"]
    assert front.shape == (3, 4, 4) and front.dtype == np.uint8
    # Centred on black.
    assert front[0].tolist() == [[0] * 4, [7] * 4, [7] * 4, [0] * 4]
    assert request["wrist"].shape == (2, 4, 3)
    assert request["prompt"] == "hold"


@pytest.mark.parametrize(
    ("lacks", "line"),
    [
        ({"images": {}}, "camera 'front' is missing"),
        ({"joints": {"a": 0.0, "b": 0.0}}, "joint 'grip' is missing"),
        ({"joints": {"a": math.nan, "b": 0.0, "grip": 0.0}}, "positions[a]: nan"),
        ({"instruction": ""}, "instruction: '': the contract wants one"),
        ({"images": {"front": np.zeros((4, 4, 3), np.uint8)}}, "[4, 4, 3]: the contract takes"),
    ],
)
def test_nothing_that_is_missing_is_filled_in(lacks: dict[str, Any], line: str) -> None:
    values = {name: getattr(inputs(), name) for name in ("images", "joints", "instruction")}
    with pytest.raises(UserError) as error:
        request_of(contract(), RobotInputs(**{**values, **lacks}))
    assert line in str(error.value)


def test_absolute_actions_become_joint_positions() -> None:
    rows = np.array([[90.0, 180.0, 0.0], [0.0, 0.0, 1.0], [0.0, 45.0, 0.5], [9.0, 9.0, 9.0]])
    found = positions_of(contract(), actions_of(contract(), {"actions": rows}), {})
    half = math.pi / 2
    expected = [[half, math.pi, 0.8], [0.0, 0.0, 0.0], [0.0, half / 2, 0.4]]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected"), [("delta", [1.1, 1.2, 1.3]), ("step_delta", [1.1, 1.3, 1.6])]
)
def test_deltas_count_from_what_was_observed(kind: str, expected: list[float]) -> None:
    def change(values: dict[str, Any]) -> None:
        values["state"] = [{"key": "state", "joints": ["a", "grip"]}]
        values["actions"]["parts"] = [
            {"key": "actions", "joints": ["a"], "kind": kind, "at_1": 0.1},
            {"key": "actions", "joints": ["grip"]},
        ]

    made = contract(change)
    rows = np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    found = positions_of(made, actions_of(made, {"actions": rows}), {"a": 1.0, "grip": 0.0})
    np.testing.assert_allclose(found[:, 0], expected)
    np.testing.assert_allclose(found[:, 1], 5.0)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (np.zeros((2, 3)), "actions: [2, 3]: must be [3 or more, 3]"),
        (np.zeros((3, 4)), "must be [3 or more, 3]"),
        (np.zeros(3), "must be"),
        (np.array([[0.0, 0.0, math.inf]] * 3), "actions[0, 2]: inf: must be finite"),
        (None, "actions: None: is missing"),
        ("grasp", "actions: 'grasp': must be an array of numbers"),
    ],
)
def test_a_reply_that_does_not_fit_is_one_line(rows: Any, line: str) -> None:
    reply = {} if rows is None else {"actions": rows}
    with pytest.raises(UserError) as error:
        actions_of(contract(), reply)
    assert line in str(error.value)


@given(
    seed=st.integers(0, 2**31),
    kinds=st.lists(st.sampled_from(["absolute", "delta", "step_delta"]), min_size=1, max_size=4),
)
@settings(max_examples=50, deadline=None)
def test_a_server_writes_what_a_client_reads(seed: int, kinds: list[str]) -> None:
    rng = np.random.default_rng(seed)
    names = [f"j{i}" for i in range(len(kinds))]
    # Several keys, and several parts of one key.
    made = decode(
        {
            "summary": "any",
            "period_s": 0.1,
            "state": [
                {"key": f"s{i % 2}", "joints": [n], "at_0": float(rng.normal()), "at_1": 3.0}
                for i, n in enumerate(names)
            ],
            "actions": {
                "horizon": 5,
                "step_s": 0.1,
                "parts": [
                    {"key": f"k{i % 2}", "joints": [n], "kind": kind, "at_1": 2.5, "unit": "deg"}
                    for i, (n, kind) in enumerate(zip(names, kinds, strict=True))
                ],
            },
        },
        PolicyContract,
    )
    joints = {name: float(rng.normal()) for name in names}
    seen = inputs_of(made, request_of(made, RobotInputs(images={}, joints=joints)))
    for name in names:
        assert seen.joints[name] == pytest.approx(joints[name], abs=1e-5)
    positions = rng.normal(size=(5, len(names)))
    reply = reply_of(made, positions, joints)
    np.testing.assert_allclose(
        positions_of(made, actions_of(made, reply), joints), positions, atol=1e-4
    )


def test_a_servers_images_are_turned_and_resized() -> None:
    request = request_of(contract(), inputs())
    seen = inputs_of(contract(), request)
    assert seen.images["front"].shape == (2, 4, 3)
    assert (seen.images["wrist"] == 9).all()
    assert seen.instruction == "hold"
    with pytest.raises(UserError, match="wrist: 5: must be uint8"):
        inputs_of(contract(), {**request, "wrist": 5})
    with pytest.raises(UserError, match="state: 2: must have 3 values"):
        inputs_of(contract(), {**request, "state": np.zeros(2)})


def test_of_the_chunk_before_the_rows_ahead_are_left() -> None:
    actions = {("actions",): np.arange(8.0).reshape(4, 2)}
    left = left_over(actions, start_ns=0, step_ns=100, now_ns=150)
    assert left is not None and left[("actions",)].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert left_over(actions, start_ns=0, step_ns=100, now_ns=301) is None
    whole = left_over(actions, start_ns=0, step_ns=100, now_ns=-50)
    assert whole is not None and len(whole[("actions",)]) == 4


def test_a_server_is_sent_what_its_metadata_list_and_no_more() -> None:
    made = contract()
    rows = np.arange(12.0).reshape(4, 3)
    last = LastChunk(actions={("actions",): rows}, start_ns=1_000_000_000)
    known: dict[str, Any] = {"request_id": 7, "delay_s": 0.12, "last": last}
    now_ns = 1_070_000_000  # between the points 1 and 2 of a step of 50 ms
    assert extra_inputs(made, frozenset(), **known, capture_ns=now_ns) == {}
    taken = ("request_id", "lookahead_s", "inference_delay", "prev_chunk_left_over")
    extra = extra_inputs(made, taken, **known, capture_ns=now_ns)
    assert (extra["request_id"], extra["lookahead_s"], extra["inference_delay"]) == (7, 0.12, 3)
    assert extra["prev_chunk_left_over"].dtype == np.float32
    assert extra["prev_chunk_left_over"].tolist() == rows[2:].tolist()
    for before, at_ns in ((None, now_ns), (last, 2_000_000_000)):
        extra = extra_inputs(made, taken, **{**known, "last": before}, capture_ns=at_ns)
        assert "prev_chunk_left_over" not in extra, "none is left"


@pytest.mark.parametrize("name", NAMES)
def test_the_ready_contracts_are_right(name: str) -> None:
    assert load_policy_contract(name).actions.joints


def test_the_demos_contract_is_that_of_its_model_and_robot() -> None:
    ready = load_policy_contract("demo_arm")
    made = contract_of_model(describe(named_model("physis_tiny_follow")))
    for field in PolicyContract.__struct_fields__:
        assert field == "summary" or getattr(ready, field) == getattr(made, field), field
    check_robot_joints(ready.actions.joints, "ur5e")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda v: v.pop("actions"), "contract.actions: None: is needed"),
        (lambda v: v.update(period_s=0), "contract.period_s: 0: must be a number above 0"),
        (lambda v: v.update(imges=[]), "contract.imges: []: unknown; did you mean 'images'?"),
        (lambda v: v["state"][0].update(unit="grad"), "contract.state[0].unit: 'grad': must be"),
        (lambda v: v["state"][1].update(at_1=0.8), "at_1: 0.8: must differ from at_0"),
        (lambda v: v["images"][1].update(camera="front"), "images: 'front': is named twice"),
        (lambda v: v["actions"]["parts"][0].update(joints=["a", "a"]), "'a': is named twice"),
        (lambda v: v["images"][0].update(canvas=[1, 4]), "is smaller than"),
        (lambda v: v.update(image_height=0), "set both: there are images"),
        (
            lambda v: v["actions"]["parts"][0].update(joints=["c", "a"], kind="delta"),
            "'c': a delta needs the joint in state",
        ),
    ],
)
def test_a_wrong_contract_is_one_line(change: Callable[[dict[str, Any]], None], line: str) -> None:
    with pytest.raises(UserError) as error:
        contract(change)
    assert line in str(error.value)


def test_an_unknown_contract_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'droid'"):
        load_policy_contract("driod")
