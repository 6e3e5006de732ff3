"""The second model, built quite otherwise than the first, through the same engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("diffusers", reason="the wan extra is not installed")

from wan_folder import make_pipeline

from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.stream import StreamConfig, StreamHandle
from physis_core.model.loading import load
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef, condition_encoder, find_model
from physis_core.types import Refused

SMALL: dict[str, Any] = {
    "heads": 1,
    "head_dim": 12,
    "ffn": 16,
    "blocks": 2,
    "channels": 2,
    "text_dim": 6,
    "text_tokens": 4,
    "freq_dim": 8,
    "height": 4,
    "width": 4,
    "steps": 2,
    "window_chunks": 3,
    "sink_chunks": 1,
    "dtype": "float32",
}
PROMPT = {"text_embedding": np.random.default_rng(0).standard_normal((3, 6)).tolist()}


def wan(**changes: Any) -> ModelRef:
    return ModelRef(family="wan", config={**SMALL, **changes})


@given(
    partition=st.sampled_from(["sequential", "step", "block", "stage", "grouped"]),
    devices=st.integers(1, 4),
    kv=st.sampled_from(["noisy", "clean"]),
    latents=st.sampled_from([1, 3]),
    observation=st.sampled_from(["none", "frames"]),
)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_chunks_equal_the_reference(watch, partition, devices, kv, latents, observation) -> None:
    if kv == "clean":
        partition = "block"
    ref = wan(kv=kv, latents=latents, observation=observation)
    with watch(simple_deployment(ref, partition=partition, devices=devices)) as seen:
        for name, condition in (("a", PROMPT), ("b", {})):
            opened = seen.engine.open_stream(
                StreamConfig(stream_id=name, release="free", seed=3, condition=condition)
            )
            assert isinstance(opened, StreamHandle), opened
            seen.observe(name)
        for name, condition in (("a", PROMPT), ("b", {})):
            seen.until_chunks(name, 6)
            assert seen.engine.close_stream(name, drain=True)
            seen.assert_equal_to_reference(name, seed=3, condition=condition)


def test_bfloat16_between_two_processes(watch) -> None:
    deployment = simple_deployment(wan(dtype="bfloat16"), partition="block", devices=2, workers=2)
    with watch(deployment) as seen:
        seen.engine.open_stream(
            StreamConfig(stream_id="a", release="free", seed=3, condition=PROMPT)
        )
        seen.observe("a")
        seen.until_chunks("a", 6)
        assert seen.engine.close_stream("a", drain=True)
        seen.assert_equal_to_reference("a", seed=3, condition=PROMPT)


def test_a_prompt_without_an_encoder_is_refused_and_says_so(watch) -> None:
    with watch(simple_deployment(wan())) as seen:
        refused = seen.engine.open_stream(
            StreamConfig(stream_id="a", release="free", seed=0, condition={"prompt": "a cat"})
        )
        assert isinstance(refused, Refused)
        assert "text_embedding" in refused.reason


def test_the_reference_prompt_matters() -> None:
    from physis_core.model.loading import load
    from physis_core.model.reference import run_stream

    torch.set_num_threads(1)
    model = load(wan())
    made = [run_stream(model, [{0: {}}], seed=0, condition=c)[0]["latent"] for c in (PROMPT, {})]
    assert not torch.equal(*made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pipeline(tmp_path_factory.mktemp("wan"), first_frame=True)


@pytest.mark.parametrize(
    ("partition", "devices", "kv"),
    [("block", 3, "noisy"), ("stage", 6, "noisy"), ("block", 2, "clean")],
)
def test_frames_of_a_folder_equal_the_reference(watch, folder, partition, devices, kv) -> None:
    """From prompt to frames; the decoder's stage runs on a device of its own, or shares one."""
    found = find_model(folder)
    ref = replace(found, config={"kv": kv})
    prompt = condition_encoder(ref).encoded({"prompt": "a red cup"})
    with watch(simple_deployment(ref, partition=partition, devices=devices)) as seen:
        opened = seen.engine.open_stream(
            StreamConfig(
                stream_id="a", release="free", seed=3, condition={"prompt": "a red  cup\n"}
            )
        )
        assert isinstance(opened, StreamHandle), opened
        seen.observe("a")
        chunks = seen.until_chunks("a", 5)
        assert seen.engine.close_stream("a", drain=True)
        seen.assert_equal_to_reference("a", seed=3, condition=prompt)
    assert chunks[0].outputs["frames"].shape == (4, 32, 32, 3)


def test_a_prompt_changes_while_chunks_run_and_a_wrong_one_changes_nothing(watch, folder) -> None:
    ref = find_model(folder)
    encoder = condition_encoder(ref)
    with watch(simple_deployment(ref)) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free", seed=3))
        seen.observe("a")
        seen.until_chunks("a", 2)
        beat = seen.engine.beat
        for wrong, reason in (("cup " * 30, "tokens"), ("cup " * 30_000, "120000 bytes")):
            refused = seen.engine.set_condition("a", {"prompt": wrong})
            assert isinstance(refused, Refused)
            assert reason in refused.reason and len(refused.reason) < 120
        assert seen.engine.set_condition("a", {"prompt": "robot arm"}) is None
        count = len(seen.chunks[("a", 0)])
        chunks = seen.until_chunks("a", count + 8)
        assert seen.engine.beat > beat
        assert seen.engine.close_stream("a", drain=True)
    model = load(ref)
    made = []
    for condition in ({}, encoder.encoded({"instruction": "robot arm"})):
        stream = ReferenceStream(model, seed=3)
        first = seen.observations[chunks[0].observations[0].observation_id]
        out = []
        for chunk in range(chunks[-1].chunk_id + 1):
            if chunk == count:
                stream.set_condition(condition)
            out.append(stream.run_chunk({0: first})["frames"])
        made.append(out)
    # The frames followed the new prompt from some chunk on, and not before it was given.
    differ = [
        not np.array_equal(chunk.outputs["frames"], made[0][chunk.chunk_id]) for chunk in chunks
    ]
    assert not any(differ[:2]) and all(differ[-2:])


def test_two_streams_of_one_prompt_share_its_keys_and_values(folder) -> None:
    model = load(find_model(folder))
    text = np.ones((3, 16), dtype=np.float32)
    one, same = (model.condition({"text_embedding": text.copy()}) for _ in range(2))
    assert one is same
    assert model.condition({"text_embedding": 2 * text}) is not one
