"""What a checkpoint draws is read from the file; one that draws nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from physis_core.model.description import FrameOutput
from physis_core.types import UserError
from physis_lab.bench.engine.world import model_with_frames

CHECKPOINTS = Path(__file__).parents[5] / "checkpoints"


def test_a_world_model_and_a_policy_that_foresees_both_draw() -> None:
    _, world = model_with_frames(CHECKPOINTS / "physis_tiny_world.safetensors")
    assert (world.family, world.frames) == (
        "tiny_world",
        FrameOutput(count=3, height=96, width=96, fovy_deg=48.0),
    )
    _, policy = model_with_frames(CHECKPOINTS / "physis_tiny_wam.safetensors")
    assert (policy.family, policy.frames) == ("tiny", FrameOutput(count=1, height=96, width=96))


@pytest.mark.parametrize("name", ["physis_tiny_follow", "physis_world_probe", "missing"])
def test_what_draws_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=name):
        model_with_frames(CHECKPOINTS / f"{name}.safetensors")
