"""What one stage computes: the contract between a model and the engine.

A chunk walks   inject -> [embed -> block 0 .. block L-1 -> head] x D -> finish.
Only two kinds of payload travel between devices: `latent` (between denoising steps) and `hidden`
(between blocks). Both are tuples of tensors with a leading batch dimension B; every row of a batch
may belong to another chunk, step or stream. What a chunk is conditioned on travels inside its
payload; what a whole stream is conditioned on (a prompt) is a `StreamCondition`, kept at every
rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from physis_core.types import KVMode, StageGraph

Payload = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape without the batch dimension, and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    @property
    def bytes(self) -> int:
        size = self.dtype.itemsize
        for n in self.shape:
            size *= n
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What the engine must know of a model without running it.

    `window_chunks` (H) counts the chunks whose KV a stage keeps, the current one included;
    `sink_chunks` of them are the stream's first chunks and are never evicted.
    """

    name: str
    steps: int
    blocks: int
    kv: KVMode
    window_chunks: int
    sink_chunks: int
    latent: tuple[TensorSpec, ...]
    hidden: tuple[TensorSpec, ...]
    observation: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    kv_bytes: int
    """Bytes of K and V that one stage keeps for one stream when the window is full."""
    block_weight_bytes: tuple[int, ...]
    shared_weight_bytes: int
    """Bytes that every device of the model holds beside its blocks. What only the device of the
    first or the last block needs (embed, head) counts to that block."""
    decoder_kv_bytes: int | None = None
    """Where the last block is a decoder: it hands `hidden` on as it is, and `finish` decodes with
    what its window at step D-1 remembers of the stream, this many bytes. Its other windows are
    empty. None: the last block is one like the others."""

    def kv_bytes_of(self, block: int) -> int:
        """Of the window of this block at step D-1, when it is full."""
        if self.decoder_kv_bytes is not None and block == self.blocks - 1:
            return self.decoder_kv_bytes
        return self.kv_bytes

    @property
    def graph(self) -> StageGraph:
        return StageGraph(steps=self.steps, blocks=self.blocks, kv=self.kv)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseKey:
    """Names one draw of noise, so that pipeline and reference draw the same numbers."""

    seed: int
    epoch: int
    chunk_id: int


class KVWindow(Protocol):
    """KV of one (stream, step, block): a rolling window of chunks, keys cached before RoPE."""

    @property
    def bytes(self) -> int: ...

    def reset(self) -> None: ...

    def snapshot(self) -> Mapping[str, Tensor]:
        """A copy of all that the next chunk reads."""
        ...

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Go on as the window did that `saved` was taken of. UserError where it does not fit."""
        ...


StreamCondition = Mapping[str, Tensor]
"""What holds for a stream until changed (e.g. text K and V of the rank's blocks), model-defined."""


class StagedModel(Protocol):
    """A model cut into stages. All methods are called under `torch.inference_mode()`.

    A rank builds the model with only the blocks that it owns; calling `block(l, ...)` for another
    one raises KeyError. So may `embed` on a rank without block 0 and `head` on one without the last
    block: their weights are needed nowhere else. B rows of a batch are independent: row i of a
    batched call equals the same call with that row alone, within floating-point tolerance.
    """

    spec: ModelSpec

    def new_kv(self, block: int) -> KVWindow:
        """An empty window for one (stream, step, block)."""
        ...

    def condition(self, values: Mapping[str, Any]) -> StreamCondition:
        """Turn what a user sets for a stream ({"prompt": ..., "goal": ...}) into tensors.

        Raises UserError naming the field where a value does not fit.
        """
        ...

    def inject(self, observation: Mapping[str, Tensor], noise: Sequence[NoiseKey]) -> Payload:
        """observation [B, ...] by name -> the first latent (pure noise and conditioning)."""
        ...

    def refresh(self, latent: Payload, observation: Mapping[str, Tensor]) -> Payload:
        """Put a newer observation into `latent` as its conditioning (`refresh: every_step`)."""
        ...

    def embed(self, latent: Payload, step: Sequence[int]) -> Payload:
        """latent at the entry of denoising step `step[i]` -> hidden. Step D is the clean pass."""
        ...

    def block(
        self,
        block: int,
        hidden: Payload,
        step: Sequence[int],
        kv: Sequence[KVWindow],
        condition: Sequence[StreamCondition],
        write: Sequence[bool],
    ) -> Payload:
        """One transformer block over B rows. Row i reads kv[i], and adds to it where write[i]."""
        ...

    def head(self, hidden: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        """hidden after the last block -> latent at the entry of the next step.

        Hidden carries what this needs of the latent that entered the step. Adds the fresh noise of
        step d + 1; after step D - 1 the latent is clean.
        """
        ...

    def renoise(self, clean: Payload, step: Sequence[int], noise: Sequence[NoiseKey]) -> Payload:
        """A clean latent (what `finish` reads) put back to the noise level at the entry of step[i].

        Its conditioning stays; at step D nothing changes. To rebuild lost KV from old outputs.
        """
        ...

    def finish(self, latent: Payload, kv: Sequence[KVWindow]) -> Mapping[str, Tensor]:
        """The clean latent -> named outputs [B, ...] (for a WAM: `action` [B, steps, joints]).

        Row i has kv[i], the last block's window of step D - 1: what a decoder remembers of the
        stream lies there. Called once for each chunk, in order.
        """
        ...
