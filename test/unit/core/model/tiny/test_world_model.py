"""The world model: staged passes equal the masked forward; its file; what its numbers mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.model.conformance import broken_promises
from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.loading import load, load_spec
from physis_core.model.noise_schedule import draw_noise, schedule_of
from physis_core.model.protocol import NoiseKey
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.autoencoder import Autoencoder
from physis_core.model.tiny.config import AutoencoderConfig, WorldConfig, read_config
from physis_core.model.tiny.loading import load_autoencoder, load_frame_coder, random_world
from physis_core.model.tiny.world_model import FIRST, LATENTS
from physis_core.types import UserError

torch.set_num_threads(1)


def small_config(**changes: object) -> WorldConfig:
    values: dict[str, object] = {
        "joint_names": ("a", "b"),
        "position_mean": (0.1, -0.2),
        "position_std": (0.5, 1.0),
        "camera_fovy_deg": 45.0,
        "frame_size": (32, 64),
        "cell_channels": 2,
        "autoencoder_width": 4,
        "frames": 2,
        "steps": 2,
        "blocks": 2,
        "dim": 16,
        "heads": 2,
        "ffn": 24,
        "window_chunks": 3,
        **changes,
    }
    return WorldConfig(**values)  # type: ignore[arg-type]


@settings(max_examples=15, deadline=None)
@given(
    chunks=st.integers(1, 6),
    window=st.integers(1, 4),
    frames=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_staged_passes_over_rolling_kv_equal_the_masked_forward(
    chunks: int, window: int, frames: int, seed: int
) -> None:
    config = small_config(window_chunks=window, frames=frames)
    model = random_world(config, seed=seed % 1000)
    random = torch.Generator().manual_seed(seed)
    actions = torch.randn(chunks, frames, 2, generator=random)
    first = torch.randn(1, config.frame_tokens, config.channels, generator=random)
    keys = [NoiseKey(seed=seed, epoch=0, chunk_id=c) for c in range(chunks)]
    shape = (config.denoised_tokens, config.channels)
    with torch.inference_mode():
        windows = [[model.new_kv(b) for b in range(config.blocks)] for _ in range(config.steps)]
        entering: list[list[torch.Tensor]] = [[] for _ in range(config.steps + 1)]
        for c in range(chunks):
            latent = model.inject({COMMANDS: actions[c : c + 1], FIRST: first}, [keys[c]])
            for d in range(config.steps):
                entering[d].append(latent[0])
                hidden = model.embed(latent, [d])
                for block in range(config.blocks):
                    hidden = model.block(block, hidden, [d], [windows[d][block]], [{}], [True])
                latent = model.head(hidden, [d], [keys[c]])
            entering[config.steps].append(latent[0])
        for d in range(config.steps):
            level = torch.tensor([schedule_of(config).level(d)])
            clean = model.network.sequence(
                torch.cat(entering[d])[None], actions[None], first, level
            )
            fresh = torch.stack([draw_noise(k, d + 1, shape) for k in keys])
            wanted = schedule_of(config).next_input(clean[0], fresh, [d] * chunks)
            torch.testing.assert_close(torch.cat(entering[d + 1]), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("decode", [True, False])
def test_it_keeps_the_promises_of_a_staged_model(decode: bool) -> None:
    assert broken_promises(lambda owned: random_world(small_config(decode=decode), owned)) == []


def test_a_chunk_gives_its_frames_and_does_not_ask_for_the_ones_before() -> None:
    config = small_config()
    first = torch.zeros(config.frame_tokens, config.channels)
    seen = {COMMANDS: torch.zeros(2, 2), FIRST: first}
    made = ReferenceStream(random_world(config), seed=3).run_chunk({0: seen})
    assert made[FRAMES].shape == (2, 32, 64, 3)
    assert made[FRAMES].dtype == torch.uint8


@given(rows=st.integers(1, 3), seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None)
def test_cells_and_tokens_are_the_same_numbers(rows: int, seed: int) -> None:
    coder = Autoencoder(AutoencoderConfig(frame_size=(64, 96), cell_channels=3, width=4))
    cells = torch.randn(rows, 3, 4, 6, generator=torch.Generator().manual_seed(seed))
    tokens = coder.tokens_of(cells)
    assert tokens.shape == (rows, coder.config.tokens, coder.config.channels)
    assert torch.equal(coder.cells_of(tokens), cells)


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    config = small_config()
    model = random_world(config, seed=5)
    path = tmp_path / "world.safetensors"
    checkpoint.save(path, config, model.network.half().float().state_dict(), {"note": 1})
    assert read_config(path, WorldConfig) == config
    again = load(ModelRef(family="tiny_world", checkpoint=str(path)))
    for name, value in model.network.state_dict().items():
        torch.testing.assert_close(again.network.state_dict()[name], value)  # type: ignore[attr-defined]
    part = load(ModelRef(family="tiny_world", checkpoint=str(path)), blocks=[1])
    assert part.spec == again.spec
    bare = load_spec(ModelRef(family="tiny_world", checkpoint=str(path), config={"decode": False}))
    assert set(bare.outputs) == {LATENTS}
    coder = load_frame_coder(path)
    frame = torch.zeros(1, 32, 64, 3, dtype=torch.uint8)
    assert torch.equal(coder.encode(frame), again.network.autoencoder.encode(frame))  # type: ignore[attr-defined]


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    config = small_config()
    model = random_world(config)
    path = tmp_path / "world.safetensors"
    checkpoint.save(path, config, model.network.state_dict(), {})
    with pytest.raises(UserError, match="model.config.dim"):
        load_spec(ModelRef(family="tiny_world", checkpoint=str(path), config={"dim": 8}))
    with pytest.raises(UserError, match="prompt"):
        model.condition({"prompt": "wave"})
    with pytest.raises(UserError, match="frame_size"):
        small_config(frame_size=(33, 64))
    other = tmp_path / "autoencoder.safetensors"
    coder = Autoencoder(config.autoencoder)
    checkpoint.save(other, config.autoencoder, coder.state_dict(), {})
    with pytest.raises(UserError, match="physis-frames/1"):
        read_config(other, WorldConfig)
    assert load_autoencoder(other).config == config.autoencoder
    weights = model.network.state_dict()
    weights.pop("place")
    checkpoint.save(path, config, weights, {})
    with pytest.raises(UserError, match="place"):
        load(ModelRef(family="tiny_world", checkpoint=str(path)))
