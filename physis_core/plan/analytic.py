"""Profiles computed from the shape of a model and a few numbers of a device.

Seconds of one block over a batch of B chunks:

    t(B) = overhead + max(B * FLOPs / (peak * achieved), (weights + B * (KV + activations)) /
    (bandwidth * achieved))

FLOPs of one chunk of n tokens with a window of H chunks: 2 * parameters * n for the matrix
products, and 4 * n * (H * n) * A for self-attention over width A, and 4 * n * text * A for
cross-attention.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from physis_core.decoding import NotNegative, Part, Positive
from physis_core.deployment.profile import BATCHES, BlockCost, ModelProfile
from physis_core.model.backbones import Backbone
from physis_core.types import UserError

Share = Annotated[float, Meta(gt=0, le=1)]


BYTES_PER_VALUE = 2


class DeviceModel(Part, frozen=True, kw_only=True):
    """A device as the computed profiles see it, with the fields of a plan file's `device`.

    `achieved_compute` and `achieved_bandwidth` are the fractions of the peaks that real kernels
    reach; `overhead_ms` is spent per block whatever the batch (kernel launches, dispatch);
    `p99_ratio` is p99 over p50.
    """

    name: str = "device"
    peak_tflops: Positive
    bandwidth_gb_s: Positive
    memory_gib: Positive
    achieved_compute: Share
    achieved_bandwidth: Share
    overhead_ms: NotNegative = 0.0
    p99_ratio: Annotated[float, Meta(ge=1)] = 1.05

    @property
    def overhead_s(self) -> float:
        return self.overhead_ms / 1e3


def block_flops(model: Backbone, latents: int = 1) -> float:
    """FLOPs of one block for one chunk of `latents` latents."""
    tokens = model.tokens_per_latent * latents
    keys = model.tokens_per_latent * model.window
    products = 2.0 * model.parameters_per_block * tokens
    attention = 4.0 * tokens * keys * model.attention_dim
    cross = 4.0 * tokens * model.text_tokens * model.attention_dim
    return products + attention + cross


def analytic_profile(
    model: Backbone,
    device: DeviceModel,
    *,
    steps: int = 4,
    latents_per_chunk: int = 1,
) -> ModelProfile:
    """The profile of `model` on `device` by the formula above.

    Raises:
        UserError: a window that is not a whole number of chunks.
    """
    if latents_per_chunk < 1:
        raise UserError("latents_per_chunk", latents_per_chunk, "must be at least 1")
    if model.window % latents_per_chunk:
        raise UserError(
            "latents_per_chunk", latents_per_chunk, f"must divide the window {model.window}"
        )
    tokens = model.tokens_per_latent * latents_per_chunk
    flops = block_flops(model, latents_per_chunk)
    weights = model.parameters_per_block * BYTES_PER_VALUE
    kv = 2.0 * model.window * model.tokens_per_latent * model.attention_dim * BYTES_PER_VALUE
    hidden = float(tokens * model.dim * BYTES_PER_VALUE)
    # A block reads and writes its hidden state about ten times over (norms, projections,
    # residuals).
    traffic = kv + 10.0 * hidden
    compute_s = flops / (device.peak_tflops * 1e12 * device.achieved_compute)
    memory_rate = device.bandwidth_gb_s * 1e9 * device.achieved_bandwidth
    p50 = {
        n: device.overhead_s + max(n * compute_s, (weights + n * traffic) / memory_rate)
        for n in BATCHES
    }
    cost = BlockCost(
        weight_bytes=weights,
        p50_s=p50,
        p99_s={n: s * device.p99_ratio for n, s in p50.items()},
    )
    shape = (
        f"{model.name}: {model.blocks} blocks, {model.parameters_per_block / 1e6:.1f} M parameters"
        f" a block, {model.tokens_per_latent} tokens per latent, {latents_per_chunk} latent(s) per"
        f" chunk, window {model.window} latents, {steps} steps, {8 * BYTES_PER_VALUE} bit values"
    )
    work = (
        f"{flops / 1e9:.0f} GFLOP per block and chunk; KV {kv / 2**20:.0f} MiB per stage; hidden"
        f" {hidden / 2**20:.1f} MiB"
    )
    speed = (
        f"{device.name}: peak {device.peak_tflops:g} TFLOP/s of which"
        f" {100 * device.achieved_compute:g}% is reached, {device.bandwidth_gb_s:g} GB/s"
        f" of which {100 * device.achieved_bandwidth:g}%, {device.overhead_ms:g} ms per block"
        f" whatever the batch, p99 = {device.p99_ratio:g} x p50"
    )
    scope = "no other work on the device; embed, head and VAE are not counted"
    assumptions = [shape, work, speed, scope]
    if model.note:
        assumptions.append(model.note)
    return ModelProfile(
        name=model.name,
        source="analytic",
        device=device.name,
        steps=steps,
        blocks=model.blocks,
        kv="noisy",
        window_chunks=model.window // latents_per_chunk,
        sink_chunks=model.sink,
        kv_bytes=kv,
        hidden_bytes=hidden,
        activation_bytes=10.0 * hidden,
        shared_weight_bytes=0.0,
        block_costs=(cost,) * model.blocks,
        assumptions=tuple(assumptions),
    )
