"""Predicted pictures are judged against what they should show, beside two yardsticks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.loading import random_tiny
from physis_core.types import UserError
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.evaluation.world.predicted_frames import main, measure

torch.set_num_threads(1)


def write_episode(folder: Path, frames: int) -> Path:
    """The arm stands where it is told to, and so does the ball: now is what will be."""
    home = np.array(HOME_RAD, np.float32)
    header = {
        "task": "follow",
        "seed": 0,
        "index": 0,
        "rate_hz": 20.0,
        "expert_step_s": 0.05,
        "joint_names": list(JOINT_NAMES),
        "image_size": [16, 16],
        "camera": "front",
    }
    path = folder / "episode_00000.safetensors"
    save_file(
        {
            "images": np.zeros((frames, 16, 16, 3), np.uint8),
            "joint_positions": np.tile(home, (frames, 1)),
            "target_positions": np.tile(np.array((0.45, 0.0, 0.2), np.float32), (frames, 1)),
            "expert": np.tile(home, (frames, 25, 1)),
        },
        path,
        metadata={"physis": json.dumps(header)},
    )
    return path


def write_policy(path: Path, pictures: int) -> Path:
    config = TinyConfig(
        joint_names=JOINT_NAMES,
        camera_names=("front",),
        position_mean=(0.0,) * 6,
        position_std=(1.0,) * 6,
        image_size=(16, 16),
        grid=1,
        keypoints=2,
        image_channels=2,
        steps=1,
        blocks=1,
        dim=16,
        heads=2,
        ffn=16,
        frame_times_s=(0.1,) * pictures,
        frame_tokens=9 * pictures,
        frame_channels=8 * (pictures > 0),
        cell_channels=2,
        autoencoder_width=4,
    )
    checkpoint.save(path, config, random_tiny(config).network.state_dict(), {})
    return path


def test_where_nothing_moves_the_picture_of_now_is_right_and_a_random_one_is_not(
    tmp_path: Path,
) -> None:
    policy = write_policy(tmp_path / "policy", pictures=1)
    found = measure(policy, [write_episode(tmp_path, 30)], rows=2, seed=0)
    assert {name: values.shape for name, values in found.items()} == {
        "predicted": (2,),
        "now": (2,),
        "coded": (2,),
    }
    assert found["now"].min() > 60.0
    assert found["predicted"].max() < 40.0


def test_what_cannot_be_judged_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = write_policy(tmp_path / "policy", pictures=1)
    with pytest.raises(UserError, match="shorter"):
        measure(policy, [write_episode(tmp_path, 28)], rows=2, seed=0)
    plain = write_policy(tmp_path / "plain", pictures=0)
    assert main(["--checkpoint", str(plain), "--data", str(tmp_path)]) == 2
    assert "predicts no frames" in capsys.readouterr().err
    assert main(["--checkpoint", str(policy), "--data", str(tmp_path), "--rows", "1"]) == 2
    assert capsys.readouterr().err.startswith("rows")
