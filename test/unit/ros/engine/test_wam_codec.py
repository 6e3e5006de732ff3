"""Tensors by camera and joint name; nothing missing, mis-sized or not finite passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from physis_core.types import UserError
from physis_ros.engine.wam_codec import WamContract, action_positions, observation_tensors

CONTRACT = WamContract(
    camera_names=("left", "right"),
    joint_names=("a", "b"),
    image_size=(4, 6),
    action_steps=3,
    step_s=0.05,
    lookahead_max_s=0.6,
)
LEFT = np.full((4, 6, 3), 1, np.uint8)
RIGHT = np.full((4, 6, 3), 2, np.uint8)


def tensors(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "images": {"right": RIGHT, "left": LEFT},
        "joint_names": ["b", "extra", "a"],
        "positions": [2.0, 9.0, 1.0],
        "lookahead_s": 0.2,
    }
    return observation_tensors(CONTRACT, **{**given, **changes})


def test_order_is_the_models() -> None:
    got = tensors()
    np.testing.assert_array_equal(got["image"], np.stack([LEFT, RIGHT]))
    np.testing.assert_array_equal(got["joint_positions"], np.float32([1.0, 2.0]))
    np.testing.assert_array_equal(got["lookahead_s"], np.float32([0.2]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"images": {"left": LEFT}}, "camera 'right' is missing"),
        ({"images": {"left": LEFT, "right": RIGHT[:2]}}, r"images\[right\]: \[2, 6, 3\]"),
        ({"joint_names": ["b", "extra"], "positions": [1.0, 2.0]}, "joint 'a' is missing"),
        ({"positions": [1.0]}, "need as many positions"),
        ({"positions": [2.0, 9.0, float("nan")]}, r"positions\[a\]: nan"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        tensors(**changes)


def test_actions() -> None:
    action = np.arange(6, dtype=np.float32).reshape(3, 2)
    got = action_positions(CONTRACT, {"action": action})
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, action)
    with pytest.raises(UserError, match="gave no action"):
        action_positions(CONTRACT, {"frame": action})
    with pytest.raises(UserError, match=r"must be \[3, 2\]"):
        action_positions(CONTRACT, {"action": action[:2]})
    action[1, 1] = np.inf
    with pytest.raises(UserError, match=r"action\[1, b\]: inf"):
        action_positions(CONTRACT, {"action": action})
