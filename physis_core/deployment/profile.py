"""What a model costs on a device: seconds by block and batch, and bytes. Measured, or computed.

The file (YAML or JSON) is what `physis profile` writes and `physis plan` reads:

    name: my_model
    source: measured            # or analytic
    device: "one H100"          # words
    steps: 4
    blocks: 30
    kv: noisy
    window_chunks: 18
    sink_chunks: 0
    kv_bytes: 194641920         # of one (stream, stage), window full
    decoder_kv_bytes: null      # where the last block is a decoder: what it keeps of a stream
    hidden_bytes: 5406720       # what one hop carries
    activation_bytes: 200000000 # workspace of one running task of batch 1; grows with the batch
    shared_weight_bytes: 0      # on every device of the model, beside its blocks
    block_costs:                # one entry for all blocks, or one per block
      - weight_bytes: 327400000
        p50_ms: {1: 1.44, 4: 3.28}
        p99_ms: {1: 1.60, 4: 3.50}
    assumptions: [...]
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from msgspec import Meta

from physis_core.decoding import Count, NotNegative, Part, Positive, decode
from physis_core.files import read_file
from physis_core.pipeline.costs import CostTable
from physis_core.types import KVMode, StageGraph, UserError

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Batch sizes of computed costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """Seconds by batch size (median and p99), and the bytes of the block's weights."""

    weight_bytes: float
    p50_s: Mapping[int, float]
    p99_s: Mapping[int, float]

    def __post_init__(self) -> None:
        if set(self.p50_s) != set(self.p99_s):
            raise UserError("p99_ms", sorted(self.p99_s), "needs the batch sizes of p50_ms")
        for batch, seconds in self.p50_s.items():
            if not 0.0 < seconds <= self.p99_s[batch]:
                raise UserError("p99_ms", self.p99_s[batch] * 1e3, "must be at least p50_ms > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """One model on one kind of device. `block_costs` has one entry per block; a single entry is
    used for all.
    """

    name: str
    source: Literal["measured", "analytic"]
    device: str = ""
    steps: Count
    blocks: Count
    kv: KVMode = "noisy"
    window_chunks: Count
    sink_chunks: Annotated[int, Meta(ge=0)] = 0
    kv_bytes: NotNegative
    decoder_kv_bytes: NotNegative | None = None
    hidden_bytes: NotNegative
    activation_bytes: NotNegative = 0.0
    shared_weight_bytes: NotNegative = 0.0
    block_costs: tuple[BlockCost, ...]
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.block_costs) == 1:
            object.__setattr__(self, "block_costs", self.block_costs * self.blocks)
        if len(self.block_costs) != self.blocks:
            entries = len(self.block_costs)
            raise UserError(
                "block_costs", entries, f"needs 1 entry or one per block, {self.blocks}"
            )

    @property
    def graph(self) -> StageGraph:
        return StageGraph(steps=self.steps, blocks=self.blocks, kv=self.kv)

    @property
    def weight_bytes(self) -> float:
        return sum(cost.weight_bytes for cost in self.block_costs) + self.shared_weight_bytes

    @property
    def stream_kv_bytes(self) -> float:
        """KV of one stream, all stages."""
        return self.kv_bytes_of(range(self.graph.stages))

    def kv_bytes_of(self, stages: Collection[int]) -> float:
        """KV of these stages of one stream; with clean KV the steps share one cache.

        A decoder keeps what it remembers at the last step alone.
        """
        decoder = 0.0
        if self.decoder_kv_bytes is not None:
            if self.steps * self.blocks - 1 in stages:
                decoder = self.decoder_kv_bytes
            stages = [stage for stage in stages if stage % self.blocks != self.blocks - 1]
        if self.kv == "clean":
            return len({stage % self.blocks for stage in stages}) * self.kv_bytes + decoder
        return len(stages) * self.kv_bytes + decoder

    def table(self, *, p99: bool = False) -> CostTable:
        """Costs by block 0 .. L-1."""
        return CostTable(
            {i: cost.p99_s if p99 else cost.p50_s for i, cost in enumerate(self.block_costs)}
        )

    def as_plain(self) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        for cost in self.block_costs:
            entries.append(
                {
                    "weight_bytes": cost.weight_bytes,
                    "p50_ms": {n: s * 1e3 for n, s in cost.p50_s.items()},
                    "p99_ms": {n: s * 1e3 for n, s in cost.p99_s.items()},
                }
            )
        if all(entry == entries[0] for entry in entries):
            entries = entries[:1]
        plain = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("block_costs", "assumptions")
        }
        return {**plain, "block_costs": entries, "assumptions": list(self.assumptions)}

    def save(self, path: Path) -> None:
        """As JSON where the name ends in .json, else as YAML."""
        plain = self.as_plain()
        if path.suffix == ".json":
            text = json.dumps(plain, indent=2) + "\n"
        else:
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        path.write_text(text, encoding="utf-8")


class CostFields(Part, frozen=True, kw_only=True):
    """One entry of `block_costs` in a file. A single number is the time of a batch of one."""

    weight_bytes: NotNegative
    p50_ms: dict[Count, Positive] | Positive
    p99_ms: dict[Count, Positive] | Positive | None = None

    def __post_init__(self) -> None:
        p50, p99 = _by_batch(self.p50_ms), _by_batch(self.p99_ms or self.p50_ms)
        if 1 not in p50:
            raise UserError("p50_ms", sorted(p50), "needs batch size 1")
        if set(p50) != set(p99):
            raise UserError("p99_ms", sorted(p99), "needs the batch sizes of p50_ms")
        for batch, ms in p99.items():
            if ms < p50[batch]:
                raise UserError(f"p99_ms[{batch}]", ms, f"is below p50 {p50[batch]:g}")

    def cost(self) -> BlockCost:
        return BlockCost(
            weight_bytes=self.weight_bytes,
            p50_s={n: ms / 1e3 for n, ms in _by_batch(self.p50_ms).items()},
            p99_s={n: ms / 1e3 for n, ms in _by_batch(self.p99_ms or self.p50_ms).items()},
        )


def _by_batch(times: dict[int, float] | float) -> dict[int, float]:
    return times if isinstance(times, dict) else {1: times}


def load_profile(path: Path) -> ModelProfile:
    """Raises UserError naming the field that does not fit."""
    return read_profile(read_file(path, "profile"))


def read_profile(values: Any) -> ModelProfile:
    if isinstance(values, Mapping) and isinstance(values.get("block_costs"), list):
        costs = [
            decode(entry, CostFields, f"block_costs[{i}]").cost()
            for i, entry in enumerate(values["block_costs"])
        ]
        values = {**values, "block_costs": costs}
    return decode(values, ModelProfile)
