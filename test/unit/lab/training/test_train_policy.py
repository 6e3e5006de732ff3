"""Training on made-up episodes: labels in time, a loss that falls, a run that goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig, read_config
from physis_core.model.tiny.network import TinyNetwork
from physis_core.types import KVMode, UserError
from physis_lab.training.dataset import EpisodeSet, SamplingConfig, expert_actions
from physis_lab.training.resumable import run
from physis_lab.training.train_policy import Levels, TrainConfig, Trainer, begin_with

torch.set_num_threads(1)
SAMPLING = SamplingConfig(chunks=3, action_steps=2, lookahead_max_s=0.3)


def write_episodes(folder: Path, episodes: int = 3, frames: int = 30) -> list[Path]:
    """Two joints that move with the brightness of a 16 x 16 image."""
    files = []
    for index in range(episodes):
        random = np.random.default_rng(index)
        at_s = np.arange(frames)[:, None] * 0.05 + np.arange(25) * 0.05 + random.uniform(0, 6)
        expert = np.stack([np.sin(at_s), np.cos(at_s)], axis=-1)
        shade = (127 + 120 * expert[:, 0, 0]).astype(np.uint8)
        arrays = {
            "images": np.ascontiguousarray(
                np.broadcast_to(shade[:, None, None, None], (frames, 16, 16, 3))
            ),
            "joint_positions": expert[:, 0].astype(np.float32),
            "target_positions": random.normal(size=(frames, 3)).astype(np.float32),
            "expert": expert.astype(np.float32),
        }
        header = {
            "task": "made-up",
            "seed": 0,
            "index": index,
            "rate_hz": 20.0,
            "expert_step_s": 0.05,
            "joint_names": ["a", "b"],
            "image_size": [16, 16],
            "camera": "front",
        }
        path = folder / f"episode_{index:05d}.safetensors"
        save_file(arrays, path, metadata={"physis": json.dumps(header)})
        files.append(path)
    return files


def write_predicted(files: list[Path], moments: int = 25) -> list[Path]:
    """Latents of one token that say where the first joint is bound to be."""
    out = []
    for path in files:
        expert = load_file(path)["expert"]
        made = path.with_name(path.name.replace("episode", "predicted"))
        latents = np.repeat(expert[:moments, 6, :1, None], 2, axis=2)
        ahead_s = np.full(moments, 0.2, np.float32)
        save_file({"latents": latents.astype(np.float16), "lookahead_s": ahead_s}, made)
        out.append(made)
    return out


def trainer(
    files: list[Path],
    steps: int,
    held_out: list[Path] | None = None,
    predicted: list[Path] | None = None,
    kv: KVMode = "noisy",
    levels: Levels = "schedule",
    single_share: float = 0.0,
) -> Trainer:
    """Where nothing is held out, nothing is validated: any episodes will do."""
    data = EpisodeSet(files, predicted)
    config = TinyConfig(
        joint_names=data.joint_names,
        camera_names=data.camera_names,
        position_mean=(0.0, 0.0),
        position_std=(0.7, 0.7),
        image_size=data.image_size,
        lookahead_max_s=0.3,
        grid=1,
        keypoints=2,
        image_channels=4,
        action_steps=2,
        steps=2,
        blocks=1,
        dim=16,
        heads=2,
        ffn=32,
        window_chunks=3,
        kv=kv,
        frame_tokens=0 if predicted is None else 1,
        frame_channels=0 if predicted is None else 2,
    )
    return Trainer(
        TrainConfig(
            steps=steps,
            rows=4,
            warmup_steps=5,
            save_every=60,
            learning_rate=1e-2,
            levels=levels,
            single_share=single_share,
        ),
        config,
        SAMPLING,
        data,
        EpisodeSet(held_out or files, predicted),
    )


def test_the_loss_falls_and_the_checkpoint_loads(tmp_path: Path) -> None:
    files = write_episodes(tmp_path)
    training = trainer(files[:2], steps=60, held_out=files[2:])
    out = tmp_path / "model.safetensors"
    held_out = run(training, out, tmp_path / "state")
    first = np.mean([action for action, _ in training.history[:5]])
    last = np.mean([action for action, _ in training.history[-10:]])
    assert last < 0.5 * first
    config, weights = checkpoint.load(out)
    assert config == training.model
    assert weights.keys() == training.average.keys()
    assert checkpoint.read_training(out)["held_out"] == held_out
    assert out.with_suffix(".png").stat().st_size > 0


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    files = write_episodes(tmp_path)
    whole, stopped = trainer(files, steps=8), trainer(files, steps=8)
    for _ in range(8):
        whole.advance()
    for _ in range(3):
        stopped.advance()
    state = tmp_path / "state"
    stopped.save_state(state)
    resumed = trainer(files, steps=8)
    resumed.load_state(state)
    for _ in range(5):
        resumed.advance()
    np.testing.assert_allclose(resumed.history, whole.history, rtol=1e-5)
    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(resumed.network.state_dict()[name], value)
    with pytest.raises(UserError, match="other settings"):
        trainer(files, steps=9).load_state(state)


@pytest.mark.parametrize("kv", ["noisy", "clean"])
def test_actions_and_pictures_are_learned_together(kv: KVMode, tmp_path: Path) -> None:
    files = write_episodes(tmp_path)
    training = trainer(files, 120, predicted=write_predicted(files), kv=kv, levels="any")
    out = tmp_path / "wam.safetensors"
    found = run(training, out, tmp_path / "state")
    assert len(training.labels) == len(training.history[0]) == 3
    history = np.array(training.history)
    assert history[-20:, 0].mean() < 0.5 * history[:20, 0].mean()
    assert history[-20:, 2].mean() < 0.7 * history[:20, 2].mean()
    assert found.keys() == {"action_rad", "locate_m", "frame_latent"}
    assert read_config(out, TinyConfig).kv == kv


def test_noisy_and_clean_kv_do_not_differ_while_chunks_have_no_history(tmp_path: Path) -> None:
    files = write_episodes(tmp_path)
    predicted = write_predicted(files)
    noisy, clean = (
        trainer(files, 4, predicted=predicted, kv=kv, single_share=0.5) for kv in ("noisy", "clean")
    )
    for _ in range(2):
        noisy.advance()
        clean.advance()
    for name, value in noisy.network.state_dict().items():
        assert torch.equal(value, clean.network.state_dict()[name]), name
    noisy.advance()
    clean.advance()
    assert noisy.history[-1] != clean.history[-1]


def test_a_policy_that_foresees_begins_with_one_that_does_not(tmp_path: Path) -> None:
    files = write_episodes(tmp_path)
    plain, out = trainer(files, 4), tmp_path / "plain.safetensors"
    plain.write(out, {})
    both = trainer(files, 4, predicted=write_predicted(files))
    own = {name: value.clone() for name, value in both.policy.state_dict().items()}
    begin_with(both.policy, out)
    _, begun = checkpoint.load(out)
    for name, value in both.policy.state_dict().items():
        if name == "place":
            assert torch.equal(value[: len(begun["place"])], begun["place"])
            assert torch.equal(value[len(begun["place"]) :], own["place"][len(begun["place"]) :])
        else:
            assert torch.equal(value, begun.get(name, own[name])), name
    foreseeing = tmp_path / "both.safetensors"
    both.write(foreseeing, {})
    with pytest.raises(UserError, match="start"):
        begin_with(plain.policy, foreseeing)


def test_lookaheads_are_those_that_the_pictures_were_made_for(tmp_path: Path) -> None:
    files = write_episodes(tmp_path, frames=30)
    data = EpisodeSet(files, write_predicted(files, moments=20))
    for seed in range(5):
        batch = data.sample(SAMPLING, 8, np.random.default_rng(seed), augment=False)
        torch.testing.assert_close(batch.lookahead_s, torch.full((8, 3, 1), 0.2))
        assert batch.frames is not None
        # Both stand for capture + 0.3 s: a latent, and the label of 0.2 s + 2 steps of 0.05 s.
        between = batch.actions[:, :, 1, 0] - batch.actions[:, :, 0, 0]
        later = batch.actions[:, :, 1, 0] + between
        torch.testing.assert_close(batch.frames[:, :, 0, 0], later, rtol=0, atol=6e-3)
    with pytest.raises(UserError, match="predicted"):
        EpisodeSet(files, [])


@given(ahead_s=st.floats(0.0, 1.2), first=st.floats(-3.0, 3.0), speed=st.floats(-2.0, 2.0))
def test_labels_lie_on_the_experts_path(ahead_s: float, first: float, speed: float) -> None:
    expert = (first + speed * 0.05 * np.arange(25))[None, :, None]
    label = expert_actions(expert, np.array([[ahead_s]]), 0.05)
    assert label[0, 0, 0] == pytest.approx(first + speed * ahead_s, abs=1e-6)


def test_labels_past_the_recorded_future_are_refused() -> None:
    with pytest.raises(UserError, match="lookahead_max_s"):
        expert_actions(np.zeros((1, 25, 1)), np.array([[1.3]]), 0.05)


def test_episodes_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    files = write_episodes(tmp_path, episodes=1)
    with pytest.raises(UserError, match="data"):
        EpisodeSet([])
    other = tmp_path / "other.safetensors"
    save_file({"images": np.zeros((2, 16, 16, 3), np.uint8)}, other, metadata={"physis": "{}"})
    with pytest.raises(UserError, match=r"other\.safetensors"):
        EpisodeSet([*files, other])


def test_a_run_begins_with_the_weights_of_another_checkpoint_of_its_shape(tmp_path: Path) -> None:
    files = write_episodes(tmp_path)
    first = trainer(files, steps=1)
    out = tmp_path / "first.safetensors"
    first.write(out, {})
    second = trainer(files, steps=1)
    with torch.no_grad():
        for weight in second.policy.parameters():
            weight.add_(1.0)
    begin_with(second.policy, out)
    kept = checkpoint.load(out)[1]
    for name, value in second.policy.state_dict().items():
        assert torch.equal(value, kept[name]), name
    with pytest.raises(UserError, match="start: .*another shape"):
        begin_with(TinyNetwork(replace(first.model, dim=32)), out)


def test_goal_and_object_are_both_to_be_found_in_the_picture(tmp_path: Path) -> None:
    files = write_episodes(tmp_path, episodes=2)
    for path in files:
        with safe_open(path, framework="np") as file:
            note = file.metadata()
        arrays = load_file(path)
        arrays["object_positions"] = arrays["target_positions"] + 1.0
        save_file(arrays, path, metadata=note)
    places = EpisodeSet(files).episodes[0].target_positions
    marks = load_file(files[0])["target_positions"]
    assert places == pytest.approx(np.concatenate([marks[:, :2], marks[:, :2] + 1.0], axis=1))
    training = trainer(files, steps=1)
    training.advance()
    assert training.step == 1
