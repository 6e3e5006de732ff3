"""Target frames: pictures at the right moments, complete files, one setting per folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.config import AutoencoderConfig
from physis_core.types import UserError
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.training.frames import FrameMaker
from physis_lab.training.predicted_frames import (
    PredictedFramesConfig,
    file_of,
    lookaheads,
    make_predicted_frames,
    shown_moments,
)

torch.set_num_threads(1)
RATE_HZ = 20.0
BALL_M = (0.45, 0.0, 0.2)


def coder(seed: int = 0) -> Autoencoder:
    torch.manual_seed(seed)
    return Autoencoder(AutoencoderConfig(cell_channels=2, width=4)).eval()


def write_episode(folder: Path, index: int, frames: int) -> Path:
    """The arm is to go from home at a constant speed of the first joint; the ball stands."""
    ahead_s = np.arange(25) * 0.05
    expert = np.tile(np.array(HOME_RAD), (frames, 25, 1))
    expert[:, :, 0] += 0.3 * ahead_s
    path = folder / f"episode_{index:05d}.safetensors"
    header = {"rate_hz": RATE_HZ, "expert_step_s": 0.05, "index": index}
    save_file(
        {
            "expert": expert.astype(np.float32),
            "target_positions": np.tile(np.array(BALL_M, np.float32), (frames, 1)),
        },
        path,
        metadata={"physis": json.dumps(header)},
    )
    return path


def test_what_is_rendered_is_the_label_s_arm_at_the_frame_s_time(tmp_path: Path) -> None:
    config, network = PredictedFramesConfig(lookahead_max_s=0.3), coder()
    episode = write_episode(tmp_path, 3, frames=11)
    (made,) = make_predicted_frames(config, network, [episode], tmp_path / "predicted")
    found = load_file(made)
    # Pictures reach 0.4 s past their capture: eight frames of the episode are in reserve for that.
    assert found["latents"].shape == (3, 9, 8)
    np.testing.assert_array_equal(found["lookahead_s"], lookaheads(config, 3, RATE_HZ, 3))
    maker = FrameMaker()
    for t, ahead_s in enumerate(found["lookahead_s"]):
        joints = np.array(HOME_RAD)
        joints[0] += 0.3 * (ahead_s + 0.1)
        picture, _ = maker.frame(joints, np.array(BALL_M))
        with torch.inference_mode():
            wanted = network.encode(torch.from_numpy(picture)[None])[0].half()
        # The label is kept in single precision: a pixel at an edge may fall the other way.
        assert np.abs(found["latents"][t] - wanted.numpy()).mean() < 1e-2
    maker.close()
    assert make_predicted_frames(config, network, [episode], tmp_path / "predicted") == [made]


def test_a_folder_holds_pictures_of_one_setting_and_one_autoencoder(tmp_path: Path) -> None:
    config = PredictedFramesConfig(lookahead_max_s=0.3)
    episode = write_episode(tmp_path, 0, frames=9)
    make_predicted_frames(config, coder(), [episode], tmp_path / "predicted")
    with pytest.raises(UserError, match="other settings"):
        make_predicted_frames(config, coder(seed=1), [episode], tmp_path / "predicted")
    with pytest.raises(UserError, match="shorter"):
        make_predicted_frames(
            config, coder(), [write_episode(tmp_path, 1, 8)], tmp_path / "predicted"
        )
    assert not file_of(tmp_path / "predicted", tmp_path / "episode_00001.safetensors").exists()
    with pytest.raises(UserError, match="frame_times_s"):
        PredictedFramesConfig(frame_times_s=())


@given(index=st.integers(0, 1000), frames=st.integers(1, 300))
def test_lookaheads_stay_in_range_and_change_with_the_segment(index: int, frames: int) -> None:
    config = PredictedFramesConfig()
    ahead_s = lookaheads(config, frames, RATE_HZ, index)
    assert ahead_s.shape == (frames,)
    assert ahead_s.min() >= 0.0
    assert ahead_s.max() <= np.float32(config.lookahead_max_s)
    np.testing.assert_array_equal(ahead_s, lookaheads(config, frames, RATE_HZ, index))
    first = ahead_s[: round(6.0 * RATE_HZ)]
    assert first.max() - first.min() <= 2 * config.jitter_s + 1e-6


def test_the_ball_is_where_it_will_be() -> None:
    config = PredictedFramesConfig(frame_times_s=(0.0, 0.1))
    targets = np.arange(30)[:, None] * np.array([0.01, 0.0, -0.02])
    expert = np.zeros((2, 25, 6))
    _, places = shown_moments(config, np.array([0.0, 0.3]), expert, targets, RATE_HZ, 0.05)
    # A twentieth of a second is one frame: 0.01 m along the first axis.
    np.testing.assert_allclose(places[:, :, 0], [[0.0, 0.02], [0.07, 0.09]], atol=1e-12)
    np.testing.assert_allclose(places[..., 2], -2.0 * places[..., 0], atol=1e-12)
