"""What a simulator says to a world: by joint name, whole, or refused with the field."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.world.codec import (
    WorldContract,
    check_rate,
    checked_first_frame,
    start_positions,
    step_actions,
)

CONTRACT = WorldContract(
    joint_names=("a", "b", "c"),
    frame_size=(96, 64),
    frames=3,
    step_s=1.0 / 30.0,
    camera_fovy_deg=90.0,
)


@given(order=st.permutations(["a", "b", "c", "gripper"]))
def test_joints_are_found_by_name_in_any_order(order: list[str]) -> None:
    value = {"a": 1.0, "b": 2.0, "c": 3.0, "gripper": 9.0}
    rows = [[value[name] + 10 * row for name in order] for row in range(3)]
    actions = step_actions(CONTRACT, order, np.ravel(rows))
    assert actions.tolist() == [[1 + 10 * r, 2 + 10 * r, 3 + 10 * r] for r in range(3)]
    assert start_positions(CONTRACT, order, rows[0]).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("names", "count", "bad", "word"),
    [
        (["a", "b"], 6, None, "'c' is missing"),
        (["a", "b", "c", "a"], 12, None, "named twice"),
        (["a", "b", "c"], 8, None, "3 x 3"),
        (["a", "b", "c"], 9, float("inf"), "must be finite"),
    ],
)
def test_actions_that_do_not_fit_are_refused_by_name(
    names: list[str], count: int, bad: float | None, word: str
) -> None:
    positions = [0.0] * count
    if bad is not None:
        positions[4] = bad
    with pytest.raises(UserError, match=word) as refused:
        step_actions(CONTRACT, names, positions)
    assert "\n" not in str(refused.value)


def test_a_first_frame_of_another_size_is_not_resized() -> None:
    right = np.zeros((96, 64, 3), dtype=np.uint8)
    assert checked_first_frame(CONTRACT, right) is right
    with pytest.raises(UserError, match="96x64.*64x96"):
        checked_first_frame(CONTRACT, np.zeros((64, 96, 3), dtype=np.uint8))


def test_a_rate_that_the_checkpoint_does_not_make_is_refused() -> None:
    check_rate(CONTRACT, 0.0)
    check_rate(CONTRACT, 30.0)
    with pytest.raises(UserError, match="30 frames"):
        check_rate(CONTRACT, 25.0)


@given(first_ns=st.integers(0, 2**60))
def test_stamps_of_a_chunk_lead_into_the_next_one(first_ns: int) -> None:
    stamps = CONTRACT.depicted_ns(first_ns)
    assert stamps[0] == first_ns
    steps = np.diff([*stamps, first_ns + CONTRACT.chunk_ns])
    assert np.abs(steps - CONTRACT.step_ns).max() <= 1


def test_the_pinhole_follows_from_the_field_of_view() -> None:
    assert CONTRACT.focal_pixel == pytest.approx(48.0)
