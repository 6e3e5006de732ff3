"""Streaming decode and encode against diffusers' whole-clip functions, and a rank's memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("diffusers", reason="the wan extra is not installed")

from diffusers import AutoencoderKLWan
from wan_folder import make_pipeline

from physis_core.model.loading import load, load_spec
from physis_core.model.registry import find_model
from physis_core.model.wan.decoder import FrameDecoder, load_decoder, load_encoder
from physis_core.model.wan.folder import WanFolder, read_folder

torch.set_num_threads(1)
LATENTS = 7
CELLS = (4, 6)


@pytest.fixture(scope="module", params=["Wan2.1", "Wan2.2"])
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> WanFolder:
    path = tmp_path_factory.mktemp("vae")
    return read_folder(make_pipeline(path, residual_vae=request.param == "Wan2.2"))


@pytest.fixture(scope="module")
def decoder(folder: WanFolder) -> FrameDecoder:
    return load_decoder(folder, torch.device("cpu"))


@pytest.fixture(scope="module")
def whole(folder: WanFolder) -> Any:
    return AutoencoderKLWan.from_pretrained(folder.vae).eval()


def latents_of_a_clip(count: int = LATENTS) -> Tensor:
    return torch.randn(4, count, *CELLS, generator=torch.Generator().manual_seed(3))


def whole_clip(whole: Any, latents: Tensor) -> Tensor:
    """uint8 [1 + 4 (F - 1), H, W, 3] as diffusers' pipeline makes them of a whole clip."""
    mean = torch.tensor(whole.config.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(whole.config.latents_std).view(1, -1, 1, 1, 1)
    with torch.inference_mode():
        pixels = whole.decode(latents[None] * std + mean).sample[0]
    return (pixels * 127.5 + 127.5).round().to(torch.uint8).permute(1, 2, 3, 0)


def streamed(decoder: FrameDecoder, latents: Tensor, chunk: int = 1) -> Tensor:
    cache = decoder.new_cache()
    with torch.inference_mode():
        parts = [decoder.decode(part, cache) for part in latents.split(chunk, dim=1)]
    return torch.cat(parts)


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_stream_decodes_to_the_whole_clip(decoder: FrameDecoder, whole: Any, chunk: int) -> None:
    """Bit for bit on one shape of tensors; the first latent's one frame comes four times."""
    latents = latents_of_a_clip()
    frames = streamed(decoder, latents, chunk)
    assert len(frames) == 4 * LATENTS
    assert all(torch.equal(frames[0], frames[i]) for i in range(1, 4))
    assert torch.equal(frames[3:], whole_clip(whole, latents))


def test_no_seam_at_a_border_between_chunks(decoder: FrameDecoder, whole: Any) -> None:
    """The change from frame to frame at a border is what the whole clip has there. A decoder that
    forgets at each border adds to it.
    """
    latents = latents_of_a_clip()
    kept = streamed(decoder, latents)
    forgetful = torch.cat([streamed(decoder, latent) for latent in latents.split(1, dim=1)])
    wanted = whole_clip(whole, latents)

    def excess(frames: Tensor) -> float:
        """Mean absolute change at the borders beyond the whole clip's, in grey levels."""
        steps, there = frames[3:].float().diff(dim=0), wanted.float().diff(dim=0)
        at_borders = range(0, len(steps), 4)
        return float(torch.stack([steps[i] - there[i] for i in at_borders]).abs().mean())

    assert excess(kept) == 0.0
    assert excess(forgetful) > 5.0


def test_a_stream_encodes_to_the_whole_clip(folder: WanFolder, whole: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    shape = folder.autoencoder
    assert shape is not None
    size = [n * shape.pixels_per_cell for n in CELLS]
    frames = torch.randint(0, 256, (9, *size, 3), generator=generator, dtype=torch.uint8)
    coder = load_encoder(folder)
    with torch.inference_mode():
        made = [coder.encode(part) for part in (frames[:1], frames[1:5], frames[5:])]
        pixels = frames.permute(3, 0, 1, 2)[None].float() / 127.5 - 1
        wanted = whole.encode(pixels).latent_dist.mode()[0]
    mean = torch.tensor(whole.config.latents_mean).view(-1, 1, 1, 1)
    std = torch.tensor(whole.config.latents_std).view(-1, 1, 1, 1)
    torch.testing.assert_close(
        torch.stack(made, dim=1), (wanted - mean) / std, rtol=1e-5, atol=1e-5
    )


def test_a_snapshot_of_the_cache_goes_on_as_the_stream_did(decoder: FrameDecoder) -> None:
    latents = latents_of_a_clip()
    for seen in (0, 1, 2, 4):
        cache, other = decoder.new_cache(), decoder.new_cache()
        with torch.inference_mode():
            if seen:
                decoder.decode(latents[:, :seen], cache)
            other.restore(cache.snapshot())
            after = [decoder.decode(latents[:, seen:], kept) for kept in (cache, other)]
        assert torch.equal(*after)


def test_the_spec_counts_the_decoders_bytes(folder: WanFolder) -> None:
    ref = find_model(folder.path)
    spec = load_spec(ref)
    last = spec.blocks - 1
    rank: Any = load(ref, [last])
    held = [p for p in rank._decoder._vae.parameters() if not p.is_meta]
    held += [rank._shared.scale_shift_table, *rank._shared.proj_out.parameters()]
    assert sum(p.numel() * p.element_size() for p in held) == spec.block_weight_bytes[last]
    cache: Any = rank.new_kv(last)
    with torch.inference_mode():
        for _ in range(3):
            rank.finish((torch.zeros(1, 4, 1, 4, 4),), [cache])
    assert cache.bytes == spec.decoder_kv_bytes
    assert rank._blocks == {}
