"""The world model's training on made-up frames: a loss that falls, runs that go on, wrong input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from physis_core.model.tiny.config import AutoencoderConfig, WorldConfig
from physis_core.model.tiny.loading import load_autoencoder, load_world
from physis_core.types import UserError
from physis_lab.evaluation.intervals import wilson
from physis_lab.evaluation.world.policy_in_world import success
from physis_lab.evaluation.world.rollouts import Scene, measure, psnr_db
from physis_lab.training.frame_set import FrameSet, split
from physis_lab.training.frames import resampled, standing_ball
from physis_lab.training.latent_set import LatentSet, WorldSampling
from physis_lab.training.pose_probe import ProbeTrainer, load_probe, read_places
from physis_lab.training.resumable import RunConfig, run
from physis_lab.training.train_frames import FramesTrainer
from physis_lab.training.train_world import WorldTrainer

torch.set_num_threads(1)
SIZE = (32, 32)


def write_frames(folder: Path, files: int = 3, frames: int = 90) -> None:
    """A bright column whose place is the first joint, on a ground that a scene has."""
    for index in range(files):
        random = np.random.default_rng(index)
        angle = np.cumsum(random.normal(0.0, 0.2, frames))
        joints = np.stack([np.sin(angle), np.cos(angle)], axis=1)
        scene = np.arange(frames) // 30
        place = np.arange(32)[None, :] - 16.0 * (1.0 + 0.7 * joints[:, :1])
        column = 200.0 * np.exp(-0.1 * place**2)
        ground = 20.0 * (1 + scene % 2)
        images = np.clip(column[:, None, :, None] + ground[:, None, None, None], 0, 255)
        save_file(
            {
                "frames": np.ascontiguousarray(
                    np.broadcast_to(images, (frames, *SIZE, 3)).astype(np.uint8)
                ),
                "joint_positions": joints.astype(np.float32),
                "target_positions": np.zeros((frames, 3), np.float32),
                "end_effector": np.repeat(joints[:, :1], 3, axis=1).astype(np.float32),
                "scene": scene.astype(np.int64),
            },
            folder / f"frames_{index:05d}.safetensors",
        )


def run_config(steps: int) -> RunConfig:
    return RunConfig(steps=steps, rows=6, warmup_steps=5, save_every=1000, learning_rate=5e-3)


def frames_trainer(folder: Path, steps: int) -> FramesTrainer:
    seen, held_out = (FrameSet(files) for files in split(folder, 1))
    config = AutoencoderConfig(frame_size=SIZE, cell_channels=4, width=8)
    return FramesTrainer(run_config(steps), config, seen, held_out)


def test_frames_then_world_then_judgement(tmp_path: Path) -> None:
    write_frames(tmp_path)
    coder_file = tmp_path / "coder.safetensors"
    frames = frames_trainer(tmp_path, steps=60)
    found = run(frames, coder_file, tmp_path / "coder.state")
    assert found["psnr_db"] > 18.0
    assert frames.history[-1][0] < 0.3 * frames.history[0][0]

    coder = load_autoencoder(coder_file)
    seen, held_out = (FrameSet(files) for files in split(tmp_path, 1))
    data = LatentSet(seen, coder, tmp_path / "latents")
    apart = LatentSet(held_out, coder, tmp_path / "latents_apart")
    # Read from the cache the second time.
    again = LatentSet(seen, coder, tmp_path / "latents")
    assert all(torch.equal(a, b) for a, b in zip(data.latents, again.latents, strict=True))
    model = WorldConfig(
        joint_names=("a", "b"),
        position_mean=(0.0, 0.0),
        position_std=(0.7, 0.7),
        camera_fovy_deg=45.0,
        frame_size=SIZE,
        cell_channels=4,
        autoencoder_width=8,
        frames=1,
        blocks=1,
        steps=2,
        dim=32,
        ffn=64,
        window_chunks=2,
    )
    world = WorldTrainer(run_config(120), model, WorldSampling(chunks=2), data, apart, coder)
    out = tmp_path / "world.safetensors"
    rolled = run(world, out, tmp_path / "world.state")
    assert set(rolled) == {"psnr_db", "psnr_first_frame_db"}
    losses = [row[0] for row in world.history]
    assert np.mean(losses[-20:]) < 0.6 * np.mean(losses[:5])
    assert out.with_suffix(".png").stat().st_size > 0

    probe_file = tmp_path / "probe.safetensors"
    run(ProbeTrainer(run_config(20), seen, held_out), probe_file, tmp_path / "probe.state")
    loaded = load_world({}, str(out), None, "cpu")
    file = held_out.files[0]
    scene = Scene(
        frames=file.frames[:25].numpy(),
        joints=file.joint_positions[:25],
        end_effector=file.end_effector[:25],
    )
    figures, made = measure(loaded, probe_file, [scene, scene], chunks=24, seed=0)
    assert made.shape == (2, 24, *SIZE, 3)
    # Minutes of training are not spent here: it is enough that the picture is of this world.
    assert figures["psnr_db"]["mean"] > 12.0
    assert figures["autoencoder_db"]["mean"] > figures["psnr_db"]["mean"] - 1.0
    assert {"pose_m", "pose_true_frames_m", "pose_first_frame_m_late"} <= figures.keys()
    assert read_places(load_probe(probe_file), scene.frames).shape == (25, 3)


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    write_frames(tmp_path)
    whole, stopped = frames_trainer(tmp_path, 6), frames_trainer(tmp_path, 6)
    for _ in range(6):
        whole.advance()
    for _ in range(2):
        stopped.advance()
    stopped.save_state(tmp_path / "state")
    resumed = frames_trainer(tmp_path, 6)
    resumed.load_state(tmp_path / "state")
    for _ in range(4):
        resumed.advance()
    np.testing.assert_allclose(resumed.history, whole.history, rtol=1e-4)
    with pytest.raises(UserError, match="other settings"):
        frames_trainer(tmp_path, 7).load_state(tmp_path / "state")


@settings(max_examples=20, deadline=None)
@given(
    chunks=st.integers(1, 4),
    frames=st.integers(1, 3),
    gaps=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_a_sequence_stays_within_one_scene_and_goes_forward(
    chunks: int, frames: int, gaps: float, seed: int
) -> None:
    scene = np.repeat([0, 1, 2], [40, 5, 60])
    config = WorldSampling(chunks=chunks, gap_share=gaps)
    random = np.random.default_rng(seed)
    at, (begin, end) = LatentSet._moments(config, scene, frames, random)
    assert len(at) == chunks * frames
    assert begin <= at[0] <= at[-1] < end
    assert len(set(scene[at])) == 1
    steps = np.diff(at).reshape(-1) if len(at) > 1 else np.array([1])
    assert (steps >= 1).all()
    assert (np.diff(at.reshape(chunks, frames), axis=1) == 1).all()


@given(to_hz=st.floats(5.0, 60.0), n=st.integers(2, 40))
def test_resampled_motion_lies_on_the_recorded_one(to_hz: float, n: int) -> None:
    line = np.arange(n)[:, None] * np.array([0.05, -0.1])
    out = resampled(line, 20.0, to_hz)
    at_s = np.arange(len(out)) / to_hz
    np.testing.assert_allclose(out, np.stack([at_s, -2 * at_s], axis=1), atol=1e-9)
    assert at_s[-1] <= (n - 1) / 20.0 + 1e-9


def test_the_ball_stands_for_a_scene() -> None:
    places = np.random.default_rng(0).normal(size=(50, 3))
    targets, scene = standing_ball(places, 300, np.random.default_rng(1))
    for number in np.unique(scene):
        assert len(np.unique(targets[scene == number], axis=0)) == 1


def test_what_is_missing_or_mixed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs over 1"):
        split(tmp_path, 1)
    with pytest.raises(UserError, match="frames"):
        FrameSet([])


def test_figures_by_hand() -> None:
    black, grey = np.zeros((1, 4, 4, 3), np.uint8), np.full((1, 4, 4, 3), 51, np.uint8)
    assert psnr_db(black, grey)[0] == pytest.approx(20.0 * np.log10(5.0), abs=1e-4)
    errors = np.full((2, 600), 0.5)
    errors[1, -200:] = 0.01
    assert success(errors).tolist() == [False, True]
    low, high = wilson(5, 10)
    assert (low, high) == pytest.approx((0.2366, 0.7634), abs=1e-3)
    assert wilson(10, 10)[1] == 1.0
