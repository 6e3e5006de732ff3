"""What a model costs on a device: seconds by block and batch, and bytes. Measured, or computed.

The file (YAML or JSON) is what `physis profile` writes and `physis plan` reads:

    name: wan2.2-5b
    source: measured            # or analytic
    device: "one H100"          # words
    steps: 4
    blocks: 30
    kv: noisy
    window_chunks: 18
    sink_chunks: 0
    kv_bytes: 194641920         # of one (stream, stage), window full
    hidden_bytes: 5406720       # what one hop carries
    activation_bytes: 200000000 # workspace of one running task of batch 1; grows with the batch
    shared_weight_bytes: 0      # embed, head: on the devices of the first and last block
    block_costs:                # one entry for all blocks, or one per block
      - weight_bytes: 327400000
        p50_ms: {1: 1.44, 4: 3.28}
        p99_ms: {1: 1.60, 4: 3.50}
    assumptions: [...]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from physis_core.deployment.fields import Fields, read_file
from physis_core.pipeline.costs import CostTable
from physis_core.types import KVMode, StageGraph, UserError


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
    """One model on one kind of device. `block_costs` has one entry per block."""

    name: str
    source: str
    device: str
    steps: int
    blocks: int
    kv: KVMode
    window_chunks: int
    sink_chunks: int
    kv_bytes: float
    hidden_bytes: float
    activation_bytes: float
    shared_weight_bytes: float
    block_costs: tuple[BlockCost, ...]
    assumptions: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if len(self.block_costs) != self.blocks:
            raise UserError("block_costs", len(self.block_costs), f"needs {self.blocks} entries")

    @property
    def graph(self) -> StageGraph:
        return StageGraph(steps=self.steps, blocks=self.blocks, kv=self.kv)

    @property
    def weight_bytes(self) -> float:
        return sum(cost.weight_bytes for cost in self.block_costs) + self.shared_weight_bytes

    @property
    def stream_kv_bytes(self) -> float:
        """KV of one stream, all stages; with clean KV the steps share one cache."""
        stages = self.blocks if self.kv == "clean" else self.graph.stages
        return self.kv_bytes * stages

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


def load_profile(path: Path) -> ModelProfile:
    """Raises UserError naming the field that does not fit."""
    return read_profile(read_file(path))


def read_profile(fields: Fields) -> ModelProfile:
    fields.only(
        "name",
        "source",
        "device",
        "steps",
        "blocks",
        "kv",
        "window_chunks",
        "sink_chunks",
        "kv_bytes",
        "hidden_bytes",
        "activation_bytes",
        "shared_weight_bytes",
        "block_costs",
        "assumptions",
    )
    blocks = fields.integer("blocks", least=1)
    costs = [_read_cost(entry) for entry in fields.each("block_costs")]
    if len(costs) == 1:
        costs *= blocks
    if len(costs) != blocks:
        raise UserError(
            fields.name("block_costs"), len(costs), f"needs 1 entry or one per block, {blocks}"
        )
    return ModelProfile(
        name=fields.text("name"),
        source=fields.text("source", choices=("measured", "analytic")),
        device=fields.text("device", ""),
        steps=fields.integer("steps", least=1),
        blocks=blocks,
        kv=fields.text("kv", "noisy", choices=("noisy", "clean")),  # type: ignore[arg-type]
        window_chunks=fields.integer("window_chunks", least=1),
        sink_chunks=fields.integer("sink_chunks", 0),
        kv_bytes=fields.number("kv_bytes", least=0.0),
        hidden_bytes=fields.number("hidden_bytes", least=0.0),
        activation_bytes=fields.number("activation_bytes", 0.0, least=0.0),
        shared_weight_bytes=fields.number("shared_weight_bytes", 0.0, least=0.0),
        block_costs=tuple(costs),
        assumptions=tuple(str(a) for a in fields.listed("assumptions", [])),
    )


def _read_cost(fields: Fields) -> BlockCost:
    fields.only("weight_bytes", "p50_ms", "p99_ms")
    p50 = _read_row(fields, "p50_ms")
    p99 = _read_row(fields, "p99_ms") if "p99_ms" in fields else dict(p50)
    if set(p50) != set(p99):
        raise UserError(fields.name("p99_ms"), sorted(p99), "needs the batch sizes of p50_ms")
    for batch, seconds in p99.items():
        if seconds < p50[batch]:
            raise UserError(
                fields.name(f"p99_ms[{batch}]"), seconds * 1e3, f"is below p50 {p50[batch] * 1e3:g}"
            )
    return BlockCost(weight_bytes=fields.number("weight_bytes", least=0.0), p50_s=p50, p99_s=p99)


def _read_row(fields: Fields, name: str) -> dict[int, float]:
    """Milliseconds by batch size -> seconds by batch size. JSON has the sizes as text."""
    row = fields.raw(name)
    if isinstance(row, (int, float)) and not isinstance(row, bool):
        row = {1: row}
    if not isinstance(row, Mapping) or not row:
        raise UserError(fields.name(name), row, "must map batch sizes to milliseconds")
    out: dict[int, float] = {}
    for key, value in row.items():
        where = fields.name(f"{name}[{key}]")
        try:
            batch, seconds = int(key), float(value) / 1e3
        except (TypeError, ValueError):
            raise UserError(where, value, "must map a batch size to milliseconds") from None
        if batch < 1:
            raise UserError(where, key, "batch sizes start at 1")
        if not 0.0 < seconds < float("inf"):
            raise UserError(where, value, "must be positive and finite")
        out[batch] = seconds
    if 1 not in out:
        raise UserError(fields.name(name), sorted(out), "needs batch size 1")
    return out
