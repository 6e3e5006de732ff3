"""Our staged chunks against diffusers' forward over the whole sequence, block-causal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("diffusers", reason="the wan extra is not installed")

from diffusers.models.transformers.transformer_wan import (
    WanAttnProcessor,
    WanTransformer3DModel,
)

from physis_core.model.noise_schedule import schedule_of
from physis_core.model.protocol import NoiseKey
from physis_core.model.wan.config import WanConfig
from physis_core.model.wan.loading import build_wan
from physis_core.model.wan.model import WanModel

torch.set_num_threads(1)


def config(**changes: Any) -> WanConfig:
    values: dict[str, Any] = {
        "heads": 2,
        "head_dim": 12,
        "ffn": 32,
        "blocks": 3,
        "channels": 4,
        "text_dim": 10,
        "text_tokens": 7,
        "freq_dim": 16,
        "height": 4,
        "width": 6,
        "steps": 2,
        "window_chunks": 9,
        "dtype": "float32",
    }
    return WanConfig(**{**values, **changes})


class Masked(WanAttnProcessor):
    """diffusers' processor with a mask that its block does not hand on."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask = mask

    def __call__(self, attn: Any, hidden: Tensor, text: Any, _: Any, rotary: Any) -> Tensor:
        return super().__call__(attn, hidden, text, self.mask, rotary)


def original(model: WanModel, window_chunks: int, chunks: int) -> WanTransformer3DModel:
    """diffusers' whole model with the same weights, under a mask of H chunks back."""
    c = model.config
    whole = WanTransformer3DModel(
        patch_size=c.patch,
        num_attention_heads=c.heads,
        attention_head_dim=c.head_dim,
        in_channels=c.channels,
        out_channels=c.channels,
        text_dim=c.text_dim,
        freq_dim=c.freq_dim,
        ffn_dim=c.ffn,
        num_layers=c.blocks,
        eps=c.eps,
    )
    weights = dict(model._shared.state_dict())
    for number, block in model._blocks.items():
        weights.update({f"blocks.{number}.{k}": v for k, v in block.state_dict().items()})
    whole.load_state_dict(weights, strict=True)
    number = torch.arange(chunks).repeat_interleave(c.tokens)
    back = number[:, None] - number[None, :]
    mask = (back >= 0) & (back < window_chunks)
    for block in whole.blocks:
        block.attn1.set_processor(Masked(mask))
    return whole.eval()


def staged(
    model: WanModel, chunks: list[Tensor], step: int, text: Tensor, known: Tensor | None = None
) -> list[Tensor]:
    """The flow of each chunk at one step, each leaving its KV for the next."""
    condition = [model.condition({"text_embedding": text})]
    windows = [model.new_kv(block) for block in range(model.config.blocks)]
    flows = []
    for number, x in enumerate(chunks):
        latent = (x,) if known is None else (x, known[number : number + 1])
        hidden = model.embed(latent, [step])
        for block, window in enumerate(windows):
            hidden = model.block(block, hidden, [step], [window], condition, [True])
        flows.append(model.flow(hidden))
    return flows


@pytest.mark.parametrize("latents", [1, 3])
@pytest.mark.parametrize(("window_chunks", "step"), [(9, 0), (9, 1), (2, 0), (1, 1)])
def test_noisy_kv_equals_one_masked_forward(latents: int, window_chunks: int, step: int) -> None:
    """At any step the chunks' inputs are at one level, so one forward gives all their flows.

    With H below the number of chunks it also shows that positions relative to the window are the
    same as absolute ones, and that what a chunk's KV remembers of older ones is kept.
    """
    c = config(latents=latents, window_chunks=window_chunks)
    model = build_wan(c)
    generator = torch.Generator().manual_seed(latents)
    chunks = [torch.randn(1, 4, latents, 4, 6, generator=generator) for _ in range(5)]
    text = torch.randn(5, 10, generator=generator)
    with torch.inference_mode():
        ours = torch.cat(staged(model, chunks, step, text), dim=2)
        padded = torch.zeros(1, 7, 10)
        padded[0, :5] = text
        theirs = original(model, window_chunks, 5)(
            torch.cat(chunks, dim=2),
            torch.tensor([1000.0 * schedule_of(c).level(step)]),
            padded,
            return_dict=False,
        )[0]
    assert float(theirs.abs().max()) > 0.1
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_observed_frames_are_at_timestep_zero() -> None:
    """Per-frame timesteps: the same as diffusers' per-token ones."""
    c = config(latents=3, observation="frames")
    model = build_wan(c)
    generator = torch.Generator().manual_seed(7)
    chunks = [torch.randn(1, 4, 3, 4, 6, generator=generator) for _ in range(3)]
    known = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    text = torch.randn(7, 10, generator=generator)
    level = 1000.0 * schedule_of(c).level(1)
    timestep = ((1 - known) * level).repeat_interleave(c.tokens // 3, dim=1).reshape(1, -1)
    with torch.inference_mode():
        ours = torch.cat(staged(model, chunks, 1, text, known), dim=2)
        theirs = original(model, 9, 3)(
            torch.cat(chunks, dim=2), timestep, text[None], return_dict=False
        )[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_clean_kv_equals_a_forward_with_the_past_at_timestep_zero() -> None:
    c = config(kv="clean")
    model = build_wan(c)
    generator = torch.Generator().manual_seed(3)
    past = [torch.randn(1, 4, 1, 4, 6, generator=generator) for _ in range(3)]
    now = torch.randn(1, 4, 1, 4, 6, generator=generator)
    text = torch.zeros(7, 10)
    condition = [model.condition({})]
    with torch.inference_mode():
        windows = [model.new_kv(block) for block in range(c.blocks)]
        for x, step, write in [*((x, 2, True) for x in past), (now, 0, False), (now, 1, False)]:
            hidden = model.embed((x,), [step])
            for block, window in enumerate(windows):
                hidden = model.block(block, hidden, [step], [window], condition, [write])
        ours = model.flow(hidden)
        timestep = torch.cat([torch.zeros(3 * c.tokens), torch.full((c.tokens,), 0.0)])
        timestep[3 * c.tokens :] = 1000.0 * schedule_of(c).level(1)
        theirs = original(model, 9, 4)(
            torch.cat([*past, now], dim=2), timestep[None], text[None], return_dict=False
        )[0][:, :, -1:]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_head_keeps_observed_frames_and_adds_no_noise_at_the_end() -> None:
    c = config(latents=3, observation="frames", steps=1)
    model = build_wan(c)
    frames = torch.full((1, 4, 3, 4, 6), 5.0)
    seen = {"latent": frames, "known": torch.tensor([[1.0, 0.0, 0.0]])}
    noise = [NoiseKey(seed=0, epoch=0, chunk_id=0)]
    with torch.inference_mode():
        latent = model.inject(seen, noise)
        hidden = model.embed(latent, [0])
        for block in range(c.blocks):
            hidden = model.block(
                block, hidden, [0], [model.new_kv(block)], [model.condition({})], [True]
            )
        out = model.finish(model.head(hidden, [0], noise), ())["latent"]
        torch.testing.assert_close(out[:, :, 1:], (latent[0] - model.flow(hidden))[:, :, 1:])
    assert torch.equal(out[:, :, 0], frames[:, :, 0])
