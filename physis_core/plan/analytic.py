"""Profiles computed from a model's shape and a device's few numbers, every assumption in words.

Seconds of one block over a batch of B chunks:

    t(B) = overhead + max(B * FLOPs / (peak * achieved), (weights + B * (KV + activations)) /
    (bandwidth * achieved))

FLOPs of one chunk of n tokens with a window of H chunks: 2 * parameters * n for the matrix
products, and 4 * n * (H * n) * A for self-attention over width A, and 4 * n * text * A for
cross-attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from physis_core.deployment.fields import Fields
from physis_core.plan.profile import BlockCost, ModelProfile
from physis_core.types import UserError

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backbone:
    """Public shape of a model. `window` counts latents whose KV a stage keeps, sink included."""

    name: str
    blocks: int
    dim: int
    attention_dim: int
    parameters_per_block: float
    tokens_per_latent: int
    window: int
    sink: int
    text_tokens: int
    note: str = ""


BACKBONES: Mapping[str, Backbone] = {
    b.name: b
    for b in (
        Backbone(
            name="wan2.1-1.3b",
            blocks=30,
            dim=1536,
            attention_dim=1536,
            parameters_per_block=46.4e6,
            tokens_per_latent=1560,
            window=21,
            sink=0,
            text_tokens=512,
        ),
        Backbone(
            name="wan2.2-5b",
            blocks=30,
            dim=3072,
            attention_dim=3072,
            parameters_per_block=163.7e6,
            tokens_per_latent=880,
            window=18,
            sink=0,
            text_tokens=512,
            note="880 tokens per latent is 704x1280; at 480x832 it is 390",
        ),
        Backbone(
            name="wan2.1-14b",
            blocks=40,
            dim=5120,
            attention_dim=5120,
            parameters_per_block=351.4e6,
            tokens_per_latent=1560,
            window=7,
            sink=1,
            text_tokens=512,
        ),
        Backbone(
            name="ltx-2.5-22b",
            blocks=48,
            dim=4096,
            attention_dim=4096,
            parameters_per_block=22e9 / 48,
            tokens_per_latent=880,
            window=21,
            sink=0,
            text_tokens=512,
            note="parameters per block are the total over the blocks, tokens are 704x1280 at 32x32:"
            " neither is public",
        ),
        Backbone(
            name="minimax-h3-33b",
            blocks=50,
            dim=5376,
            attention_dim=7168,
            parameters_per_block=645.6e6,
            tokens_per_latent=1008,
            window=18,
            sink=0,
            text_tokens=0,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceModel:
    """A device as the computed profiles see it.

    `achieved_compute` and `achieved_bandwidth` are the fractions of the peaks that real kernels
    reach; `overhead_s` is spent per block whatever the batch (kernel launches, dispatch);
    `p99_ratio` is p99 over p50.
    """

    name: str
    peak_flops: float
    bandwidth_bytes_s: float
    memory_bytes: float
    achieved_compute: float
    achieved_bandwidth: float
    overhead_s: float
    p99_ratio: float = 1.05

    def __post_init__(self) -> None:
        for name in ("peak_flops", "bandwidth_bytes_s", "memory_bytes"):
            if not getattr(self, name) > 0.0:
                raise UserError(name, getattr(self, name), "must be positive")
        for name in ("achieved_compute", "achieved_bandwidth"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise UserError(name, getattr(self, name), "must be in (0, 1]")
        if self.overhead_s < 0.0:
            raise UserError("overhead_s", self.overhead_s, "must not be negative")
        if self.p99_ratio < 1.0:
            raise UserError("p99_ratio", self.p99_ratio, "must be at least 1")


def read_device(fields: Fields) -> DeviceModel:
    fields.only(
        "name",
        "peak_tflops",
        "bandwidth_gb_s",
        "memory_gib",
        "achieved_compute",
        "achieved_bandwidth",
        "overhead_ms",
        "p99_ratio",
    )
    return DeviceModel(
        name=fields.text("name", "device"),
        peak_flops=fields.number("peak_tflops", above=0.0) * 1e12,
        bandwidth_bytes_s=fields.number("bandwidth_gb_s", above=0.0) * 1e9,
        memory_bytes=fields.number("memory_gib", above=0.0) * 2**30,
        achieved_compute=fields.number("achieved_compute", above=0.0, most=1.0),
        achieved_bandwidth=fields.number("achieved_bandwidth", above=0.0, most=1.0),
        overhead_s=fields.number("overhead_ms", 0.0, least=0.0) / 1e3,
        p99_ratio=fields.number("p99_ratio", 1.05, least=1.0),
    )


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
    bytes_per_value: int = 2,
) -> ModelProfile:
    """The profile of `model` on `device` after the formula above.

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
    weights = model.parameters_per_block * bytes_per_value
    kv = 2.0 * model.window * model.tokens_per_latent * model.attention_dim * bytes_per_value
    hidden = float(tokens * model.dim * bytes_per_value)
    # A block reads and writes its hidden state about ten times over (norms, projections,
    # residuals).
    traffic = kv + 10.0 * hidden
    compute_s = flops / (device.peak_flops * device.achieved_compute)
    memory_rate = device.bandwidth_bytes_s * device.achieved_bandwidth
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
        f" chunk, window {model.window} latents, {steps} steps, {8 * bytes_per_value} bit values"
    )
    work = (
        f"{flops / 1e9:.0f} GFLOP per block and chunk; KV {kv / 2**20:.0f} MiB per stage; hidden"
        f" {hidden / 2**20:.1f} MiB"
    )
    speed = (
        f"{device.name}: peak {device.peak_flops / 1e12:g} TFLOP/s of which"
        f" {100 * device.achieved_compute:g}% is reached, {device.bandwidth_bytes_s / 1e9:g} GB/s"
        f" of which {100 * device.achieved_bandwidth:g}%, {device.overhead_s * 1e3:g} ms per block"
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
