from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from physis_core.types import UserError
from physis_lab.tasks.episodes import EpisodeConfig, generate

CONFIG = EpisodeConfig(duration_s=1.0, rate_hz=10.0, seed=3)


def test_same_episodes_again_and_only_missing_ones(tmp_path: Path) -> None:
    assert generate(CONFIG, tmp_path, 2) == 2
    first = tmp_path / "episode_00000.safetensors"
    before = first.read_bytes()
    first.unlink()
    (tmp_path / "episode_00001.partial").write_bytes(b"cut off")
    assert generate(CONFIG, tmp_path, 2) == 1
    assert first.read_bytes() == before
    arrays = load_file(first)
    assert arrays["images"].shape == (10, 64, 64, 3)
    assert arrays["images"].dtype == np.uint8
    assert arrays["expert"].shape == (10, 25, 6)
    assert arrays["expert"][:, 0] == pytest.approx(arrays["joint_positions"])
    with safe_open(first, framework="numpy") as file:
        assert json.loads(file.metadata()["physis"])["rate_hz"] == 10.0


def test_another_configuration_is_not_mixed_in(tmp_path: Path) -> None:
    generate(CONFIG, tmp_path, 1)
    with pytest.raises(UserError, match="another configuration"):
        generate(EpisodeConfig(duration_s=1.0, rate_hz=10.0, seed=4), tmp_path, 1)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"task": "dance"}, "task"),
        ({"seed": -1}, "seed"),
        ({"duration_s": 0.0}, "duration"),
        ({"rate_hz": 500.0}, "rate"),
    ],
)
def test_bad_configuration(bad: dict[str, object], field: str) -> None:
    with pytest.raises(UserError, match=field):
        EpisodeConfig(**bad)  # type: ignore[arg-type]
