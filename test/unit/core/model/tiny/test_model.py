"""physis-tiny: the staged path computes what the training forward computes, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from physis_core.model.conformance import broken_promises
from physis_core.model.noise_schedule import draw_noise, schedule_of
from physis_core.model.protocol import NoiseKey, Payload
from physis_core.model.reference import ReferenceStream
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.loading import random_tiny
from physis_core.model.tiny.model import TinyModel
from physis_core.types import KVMode, UserError

torch.set_num_threads(1)


def small_config(**changes: object) -> TinyConfig:
    values: dict[str, object] = {
        "joint_names": ("a", "b", "c"),
        "camera_names": ("front",),
        "position_mean": (0.1, -0.2, 0.3),
        "position_std": (0.5, 1.0, 2.0),
        "image_size": (16, 16),
        "grid": 1,
        "keypoints": 2,
        "action_steps": 2,
        "steps": 2,
        "blocks": 2,
        "dim": 16,
        "heads": 2,
        "ffn": 24,
        "window_chunks": 3,
        **changes,
    }
    return TinyConfig(**values)  # type: ignore[arg-type]


configs = st.tuples(
    st.sampled_from([("front",), ("front", "wrist")]),
    st.integers(1, 4),
    st.sampled_from(["joints", "mean"]),
    st.sampled_from([(0, 0), (2, 3)]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
).map(
    lambda v: small_config(
        camera_names=v[0],
        action_steps=v[1],
        action_reference=v[2],
        frame_tokens=v[3][0],
        frame_channels=v[3][1],
        steps=v[4],
        blocks=v[5],
        heads=v[6],
        window_chunks=v[7],
    )
)


def observation(config: TinyConfig, seed: int, rows: int) -> dict[str, Tensor]:
    """`rows` observations [rows, ...]."""
    random = torch.Generator().manual_seed(seed)
    cameras = len(config.camera_names)
    return {
        "image": torch.randint(
            0, 256, (rows, cameras, *config.image_size, 3), generator=random, dtype=torch.uint8
        ),
        "joint_positions": torch.randn(rows, config.joints, generator=random),
        "lookahead_s": 0.6 * torch.rand(rows, 1, generator=random),
    }


def rows_of(values: dict[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in values.items()}


@settings(max_examples=25, deadline=None)
@given(config=configs, chunks=st.integers(1, 6), seed=st.integers(0, 2**32 - 1))
def test_staged_passes_over_rolling_kv_equal_the_masked_forward_over_the_sequence(
    config: TinyConfig, chunks: int, seed: int
) -> None:
    """The sequence pass gets the staged path's inputs of a step and must give its predictions."""
    model = random_tiny(config, seed=seed % 1000)
    network, schedule = model.network, schedule_of(config)
    seen = observation(config, seed, chunks)
    keys = [NoiseKey(seed=seed, epoch=0, chunk_id=c) for c in range(chunks)]
    with torch.inference_mode():
        windows = [
            [model.new_kv(block) for block in range(config.blocks)] for _ in range(config.steps)
        ]
        entering: list[list[Payload]] = [[] for _ in range(config.steps + 1)]
        for c in range(chunks):
            latent = model.inject(rows_of(seen, slice(c, c + 1)), [keys[c]])
            for d in range(config.steps):
                entering[d].append(latent)
                hidden = model.embed(latent, [d])
                for block in range(config.blocks):
                    hidden = model.block(block, hidden, [d], [windows[d][block]], [{}], [True])
                latent = model.head(hidden, [d], [keys[c]])
            entering[config.steps].append(latent)

        joints, condition = network.encode(seen)
        for d in range(config.steps):
            noisy = [
                torch.cat([latent[p] for latent in entering[d]])[None]
                for p in range(len(config.parts))
            ]
            level = torch.tensor([schedule.level(d)])
            clean = network.sequence(noisy, joints[None], condition[None], level)
            for p, part in enumerate(config.parts):
                fresh = torch.stack(
                    [draw_noise(k, d + 1, (part.tokens, part.channels), p) for k in keys]
                )
                wanted = schedule.next_input(clean[p][0], fresh, [d] * chunks)
                got = torch.cat([latent[p] for latent in entering[d + 1]])
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(
    config=configs,
    seed=st.integers(0, 1000),
    fills=st.lists(st.integers(0, 5), min_size=2, max_size=4),
)
def test_rows_of_a_batch_do_not_see_each_other(
    config: TinyConfig, seed: int, fills: list[int]
) -> None:
    model = random_tiny(config, seed=seed)
    rows = len(fills)
    steps = [row % config.steps for row in range(rows)]
    seen = observation(config, seed, rows)
    keys = [NoiseKey(seed=seed, epoch=0, chunk_id=row) for row in range(rows)]

    def filled() -> list:  # type: ignore[type-arg]
        out = []
        for row, fill in enumerate(fills):
            random = torch.Generator().manual_seed(1000 * seed + row)
            kv = model.new_kv(0)
            for _ in range(fill):
                shape = (2, config.tokens, config.heads, config.head_dim)
                kv.append(*torch.randn(shape, generator=random))
            out.append(kv)
        return out

    def walk(which: slice) -> Payload:
        latent = model.inject(rows_of(seen, which), keys[which])
        hidden = model.embed(latent, steps[which])
        kv = filled()[which]
        hidden = model.block(0, hidden, steps[which], kv, [{}] * len(kv), [True] * len(kv))
        return model.head(hidden, steps[which], keys[which])

    with torch.inference_mode():
        together = walk(slice(0, rows))
        for row in range(rows):
            for a, b in zip(together, walk(slice(row, row + 1)), strict=True):
                torch.testing.assert_close(a[row : row + 1], b, rtol=1e-4, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(config=configs)
def test_payloads_have_the_shapes_of_the_specification(config: TinyConfig) -> None:
    model = random_tiny(config)
    key = [NoiseKey(seed=1, epoch=0, chunk_id=0)] * 2
    with torch.inference_mode():
        latent = model.inject(observation(config, 0, 2), key)
        hidden = model.embed(latent, [0, 0])
        refreshed = model.refresh(latent, observation(config, 1, 2))
        outputs = model.finish(latent, ())
    for payload, specs in ((latent, model.spec.latent), (hidden, model.spec.hidden)):
        assert [(tuple(x.shape[1:]), x.dtype) for x in payload] == [
            (spec.shape, spec.dtype) for spec in specs
        ]
    assert {n: tuple(x.shape[1:]) for n, x in outputs.items()} == {
        n: spec.shape for n, spec in model.spec.outputs.items()
    }
    parts = len(config.parts)
    for kept, before in zip(refreshed[:parts], latent[:parts], strict=True):
        assert torch.equal(kept, before)
    assert not torch.equal(refreshed[-1], latent[-1])
    assert model.new_kv(0).bytes == model.spec.kv_bytes


def test_a_rank_holds_only_its_blocks_and_computes_the_same() -> None:
    config = small_config(blocks=3)
    whole, part = random_tiny(config), random_tiny(config, owned=[1])
    with torch.inference_mode():
        key = [NoiseKey(seed=1, epoch=0, chunk_id=0)]
        hidden = whole.embed(whole.inject(observation(config, 0, 1), key), [0])
        wanted = whole.block(1, hidden, [0], [whole.new_kv(1)], [{}], [True])
        got = part.block(1, hidden, [0], [part.new_kv(1)], [{}], [True])
        assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
        with pytest.raises(KeyError):
            part.block(0, hidden, [0], [part.new_kv(0)], [{}], [True])


@pytest.mark.parametrize("kv", ["noisy", "clean"])
def test_it_keeps_the_promises_of_a_staged_model(kv: KVMode) -> None:
    assert broken_promises(lambda owned: random_tiny(small_config(kv=kv), owned)) == []


@settings(max_examples=15, deadline=None)
@given(config=configs, chunks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_with_clean_kv_the_forward_over_the_sequence_is_what_the_staged_path_computes(
    config: TinyConfig, chunks: int, seed: int
) -> None:
    """The sequence pass gets each chunk's clean latent as its history, as the rerun leaves it."""
    model = random_tiny(replace(config, kv="clean"), seed=seed % 1000)
    network, schedule = model.network, schedule_of(config)
    seen = observation(config, seed, chunks)
    keys = [NoiseKey(seed=seed, epoch=0, chunk_id=c) for c in range(chunks)]
    windows = [model.new_kv(block) for block in range(config.blocks)]

    def run_blocks(hidden: Payload, d: int) -> Payload:
        for block, window in enumerate(windows):
            hidden = model.block(block, hidden, [d], [window], [{}], [d == config.steps])
        return hidden

    with torch.inference_mode():
        entering: list[list[Payload]] = [[] for _ in range(config.steps + 1)]
        for c in range(chunks):
            latent = model.inject(rows_of(seen, slice(c, c + 1)), [keys[c]])
            for d in range(config.steps):
                entering[d].append(latent)
                latent = model.head(run_blocks(model.embed(latent, [d]), d), [d], [keys[c]])
            entering[config.steps].append(latent)
            run_blocks(model.embed(latent, [config.steps]), config.steps)

        def parts_at(d: int) -> list[Tensor]:
            count = len(config.parts)
            return [torch.cat([latent[p] for latent in entering[d]])[None] for p in range(count)]

        joints, condition = network.encode(seen)
        for d in range(config.steps):
            level = torch.tensor([schedule.level(d)])
            clean = network.sequence(
                parts_at(d), joints[None], condition[None], level, parts_at(config.steps)
            )
            for p, part in enumerate(config.parts):
                fresh = torch.stack(
                    [draw_noise(k, d + 1, (part.tokens, part.channels), p) for k in keys]
                )
                wanted = schedule.next_input(clean[p][0], fresh, [d] * chunks)
                torch.testing.assert_close(parts_at(d + 1)[p][0], wanted, rtol=1e-4, atol=1e-4)


PICTURES: dict[str, object] = {
    "frame_times_s": (0.1, 0.2),
    "frame_size": (32, 64),
    "cell_channels": 2,
    "autoencoder_width": 4,
    "frame_tokens": 4,
    "frame_channels": 8,
}


def test_pictures_of_the_future_leave_beside_the_actions_or_as_latents_where_asked() -> None:
    seen = {n: x[0] for n, x in observation(small_config(), 0, 1).items()}
    drawn, latents = (
        random_tiny(small_config(**PICTURES, decode=decode)) for decode in (True, False)
    )
    made = ReferenceStream(drawn, seed=1).run_chunk({0: seen})
    kept = ReferenceStream(latents, seed=1).run_chunk({0: seen})
    assert made.keys() == drawn.spec.outputs.keys() == {"action", "frames"}
    assert kept.keys() == latents.spec.outputs.keys() == {"action", "frame"}
    assert torch.equal(made["action"], kept["action"])
    assert (tuple(made["frames"].shape), made["frames"].dtype) == ((2, 32, 64, 3), torch.uint8)
    again = latents.network.autoencoder.decode(kept["frame"].reshape(2, 2, 8))
    assert torch.equal(made["frames"], again)
    assert broken_promises(lambda owned: random_tiny(small_config(**PICTURES), owned)) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("frame_tokens", 3), ("frame_channels", 4), ("frame_times_s", (-0.1, 0.2))],
)
def test_pictures_that_do_not_fit_their_autoencoder_are_refused_by_name(
    field: str, value: object
) -> None:
    with pytest.raises(UserError, match=field):
        small_config(**{**PICTURES, field: value})


def test_clean_kv_runs_through_the_reference() -> None:
    config = small_config(kv="clean")
    stream = ReferenceStream(random_tiny(config), seed=3)
    seen = {name: value[0] for name, value in observation(config, 0, 1).items()}
    first, second = stream.run_chunk({0: seen}), stream.run_chunk({0: seen})
    assert first["action"].shape == (config.action_steps, config.joints)
    assert not torch.equal(first["action"], second["action"])


def test_unknown_stream_condition_is_refused_by_name() -> None:
    model = TinyModel(small_config())
    assert model.condition({}) == {}
    with pytest.raises(UserError, match="prompt"):
        model.condition({"prompt": "wave"})
