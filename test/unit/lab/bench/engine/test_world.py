"""What a checkpoint draws is read from the file; one that draws nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from physis_core.types import UserError
from physis_lab.bench.engine.world import drawing_of

CHECKPOINTS = Path(__file__).parents[5] / "checkpoints"


def test_a_world_model_and_a_policy_that_foresees_both_draw() -> None:
    world = drawing_of(CHECKPOINTS / "physis_tiny_world.safetensors")
    assert (world.kind, world.frames, world.frame_size) == ("tiny_world", 3, (96, 96))
    policy = drawing_of(CHECKPOINTS / "physis_tiny_wam.safetensors")
    assert (policy.kind, policy.frames, policy.frame_size) == ("tiny", 1, (96, 96))


@pytest.mark.parametrize("name", ["physis_tiny_follow", "physis_world_probe", "missing"])
def test_what_draws_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=name):
        drawing_of(CHECKPOINTS / f"{name}.safetensors")
