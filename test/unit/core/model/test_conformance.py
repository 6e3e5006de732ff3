from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from physis_core.model.conformance import broken_promises
from physis_core.model.protocol import KVWindow, Payload
from physis_core.model.synthetic.config import SyntheticConfig
from physis_core.model.synthetic.model import SyntheticModel

torch.set_num_threads(1)
CONDITIONS = [{"bias": 0.2}, {"bias": -0.4}, {}]


@settings(max_examples=10, deadline=None)
@given(
    steps=st.integers(1, 4),
    blocks=st.integers(1, 3),
    tokens=st.integers(1, 5),
    extra=st.sampled_from([0, 2]),
    heads=st.integers(1, 2),
    window=st.integers(1, 4).flatmap(lambda h: st.tuples(st.just(h), st.integers(0, h - 1))),
    kv=st.sampled_from(["noisy", "clean"]),
    rows=st.integers(1, 5),
)
def test_synthetic_models_conform(
    steps: int,
    blocks: int,
    tokens: int,
    extra: int,
    heads: int,
    window: tuple[int, int],
    kv: Any,
    rows: int,
) -> None:
    config = SyntheticConfig(
        steps=steps,
        blocks=blocks,
        tokens=tokens,
        dim=8,
        heads=heads,
        window_chunks=window[0],
        sink_chunks=window[1],
        kv=kv,
        extra_stream_tokens=extra,
        ffn=tuple(8 * (b + 1) for b in range(blocks)),
    )

    def build(owned: Iterable[int] | None) -> SyntheticModel:
        return SyntheticModel(config, owned)

    assert broken_promises(build, conditions=CONDITIONS, rows=rows) == []


class Mixes(SyntheticModel):
    """Lets rows see each other."""

    def block(self, block: int, hidden: Payload, *rest: Any) -> Payload:
        out = super().block(block, hidden, *rest)
        return (out[0] + out[0].mean(dim=0, keepdim=True), *out[1:])


class NeverWrites(SyntheticModel):
    def block(
        self, block: int, hidden: Payload, step: Any, kv: Any, condition: Any, write: Sequence[bool]
    ) -> Payload:
        return super().block(block, hidden, step, kv, condition, [False] * len(write))


class ChangesInput(SyntheticModel):
    def block(self, block: int, hidden: Payload, *rest: Any) -> Payload:
        hidden[0].add_(1.0)
        return super().block(block, hidden, *rest)


class LeavesNoise(SyntheticModel):
    def head(self, hidden: Payload, step: Any, noise: Any) -> Payload:
        latent = super().head(hidden, step, noise)
        rows = torch.tensor([float(key.chunk_id) for key in noise])
        return (latent[0] + rows.view(-1, 1, 1), *latent[1:])


class WrongShape(SyntheticModel):
    def finish(self, latent: Payload, kv: Sequence[KVWindow]) -> dict[str, Tensor]:
        return {"action": latent[0]}


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (Mixes, "block 0, chunk 0: row"),
        (NeverWrites, "left nothing"),
        (ChangesInput, "changed its input"),
        (LeavesNoise, "noise was added"),
        (WrongShape, "finish: "),
    ],
)
def test_each_broken_promise_is_found(kind: type[SyntheticModel], complaint: str) -> None:
    broken = broken_promises(lambda owned: kind(SyntheticConfig(), owned), conditions=CONDITIONS)
    assert any(complaint in line for line in broken), broken
