"""Does a model keep what `StagedModel` promises? The engine relies on every one of these.

    assert broken_promises(build) == []

`build(blocks)` makes the model with only these blocks (None: all).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from physis_core.model.protocol import (
    KVWindow,
    NoiseKey,
    Payload,
    StagedModel,
    StreamCondition,
    TensorSpec,
)
from physis_core.model.reference import run_stream

Build = Callable[[Iterable[int] | None], StagedModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One thing that the engine relies on. `broken` says how, a line each; empty where kept."""

    name: str
    meaning: str
    broken: tuple[str, ...] = ()


def broken_promises(
    build: Build,
    *,
    conditions: Sequence[Mapping[str, Any]] = ({},),
    observation: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    rows: int = 4,
    relative: float = 1e-4,
) -> list[str]:
    """One line per promise that is broken; empty where the model conforms. Arguments as
    `check_promises`.
    """
    promises = check_promises(
        build,
        conditions=conditions,
        observation=observation,
        seed=seed,
        rows=rows,
        relative=relative,
    )
    return [line for promise in promises for line in promise.broken]


def check_promises(
    build: Build,
    *,
    conditions: Sequence[Mapping[str, Any]] = ({},),
    observation: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    rows: int = 4,
    relative: float = 1e-4,
) -> list[Promise]:
    """Every promise, kept or broken. An exception of the model counts as broken.

    Args:
        conditions: stream conditions to mix within a batch, as a user would set them.
        observation: for `rows` rows, [rows, ...]; random where not given.
        rows: rows of the mixed batch.
        relative: largest difference between batch and single row, relative to the largest value.

    Raises:
        UserError: the model cannot be built.
    """
    with torch.inference_mode():
        check = _Check(build, conditions, observation, seed, rows, relative)
        return [check.run(name, meaning) for name, meaning in _PROMISES.items()]


_PROMISES = {
    "shapes": "every stage gives the shapes and dtypes of the spec and leaves its input alone",
    "row_independence": "a row of a batch equals the same row alone",
    "determinism": "chunks follow from seed and observation, bit for bit, and depend on the seed",
    "write_flag": "a chunk that is not written leaves no trace in the KV, a written one does",
    "refresh_and_noise": "refresh and renoise change what they name, and nothing after step D",
    "ownership": "a block alone equals the block of the whole model; others raise KeyError",
    "memory": "the KV takes the bytes that the spec names, from the first chunk on",
}
"""The checks by name, in order, each a method of `_Check`."""


class _Check:
    def __init__(
        self,
        build: Build,
        conditions: Sequence[Mapping[str, Any]],
        observation: Mapping[str, Tensor] | None,
        seed: int,
        rows: int,
        relative: float,
    ) -> None:
        self.broken: list[str] = []
        self._build = build
        self._model = build(None)
        self._spec = self._model.spec
        self._rows = rows
        self._relative = relative
        self._generator = torch.Generator().manual_seed(seed)
        self._raw_conditions = [conditions[i % len(conditions)] for i in range(rows)]
        self._conditions = [self._model.condition(c) for c in self._raw_conditions]
        self._noise = [NoiseKey(seed=seed + i, epoch=i % 2, chunk_id=3 * i) for i in range(rows)]
        self._step = [i % self._spec.graph.passes for i in range(rows)]
        self._observation = dict(observation) if observation else self._observe(rows)

    def run(self, name: str, meaning: str) -> Promise:
        before = len(self.broken)
        try:
            getattr(self, name)()
        except Exception as error:  # noqa: BLE001  whatever somebody's model raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self.broken.append(f"{name}: raised {reason}")
        return Promise(name=name, meaning=meaning, broken=tuple(self.broken[before:]))

    def shapes(self) -> None:
        model, spec, n = self._model, self._spec, self._rows
        latent = model.inject(self._observation, self._noise)
        self._same_shapes("inject", latent, spec.latent)
        self._same_shapes("refresh", model.refresh(latent, self._observation), spec.latent)
        hidden = model.embed(latent, self._step)
        self._same_shapes("embed", hidden, spec.hidden)
        for block in range(spec.blocks):
            windows = [model.new_kv(block) for _ in range(n)]
            call = partial(self._run, block, windows=windows)
            hidden = self._unchanged_input(f"block {block}", hidden, call)
            self._same_shapes(f"block {block}", hidden, spec.hidden)
        steps = [i % spec.steps for i in range(n)]
        latent = self._unchanged_input("head", hidden, lambda h: model.head(h, steps, self._noise))
        self._same_shapes("head", latent, spec.latent)
        outputs = model.finish(latent, self._exit_windows(n))
        if set(outputs) != set(spec.outputs):
            self.broken.append(f"finish: names {sorted(outputs)}, spec {sorted(spec.outputs)}")
        else:
            names = sorted(outputs)
            got = tuple(outputs[name] for name in names)
            self._same_shapes("finish", got, [spec.outputs[name] for name in names])

    def row_independence(self) -> None:
        """Rows of different observation, noise, step, condition and KV fill, and each row alone."""
        model, spec, n = self._model, self._spec, self._rows
        noise, step = self._noise, self._step
        single = [{k: v[i : i + 1] for k, v in self._observation.items()} for i in range(n)]
        latent = model.inject(self._observation, noise)
        alone = [model.inject(single[i], [noise[i]]) for i in range(n)]
        self._equal_rows("inject", latent, alone)
        hidden = model.embed(latent, step)
        self._equal_rows(
            "embed", hidden, [model.embed(_row(latent, i), [step[i]]) for i in range(n)]
        )
        for block in range(spec.blocks):
            windows = [model.new_kv(block) for _ in range(n)]
            copies = [model.new_kv(block) for _ in range(n)]
            for i in range(n):
                # Row i has seen i chunks more than the window can hold, down to an empty one.
                for _ in range(min(i * (spec.window_chunks + 1) // max(n - 1, 1), 40)):
                    filler = tuple(self._like(x[i : i + 1]) for x in hidden)
                    for window in (windows[i], copies[i]):
                        self._run(block, filler, [window], [i])
            entered = hidden
            for again in range(2):
                hidden = self._run(block, entered, windows)
                alone = [self._run(block, _row(entered, i), [copies[i]], [i]) for i in range(n)]
                self._equal_rows(f"block {block}, chunk {again}", hidden, alone)
        steps = [i % spec.steps for i in range(n)]
        latent = model.head(hidden, steps, noise)
        alone = [model.head(_row(hidden, i), [steps[i]], [noise[i]]) for i in range(n)]
        self._equal_rows("head", latent, alone)
        outputs = model.finish(latent, self._exit_windows(n))
        singles = [model.finish(_row(latent, i), self._exit_windows(1)) for i in range(n)]
        for name, value in outputs.items():
            self._equal_rows(f"finish {name}", (value,), [(made[name],) for made in singles])

    def determinism(self) -> None:
        """Two models built alike give the same chunks bit for bit; another seed gives others."""
        chunks = [{0: {k: v[0] for k, v in self._observation.items()}}] * 3
        condition = self._raw_conditions[0]
        runs = [
            run_stream(model, chunks, seed=seed, condition=condition)
            for model, seed in ((self._model, 1), (self._build(None), 1), (self._model, 2))
        ]
        for name in self._spec.outputs:
            first, same, other = (torch.stack([out[name] for out in run]) for run in runs)
            if not torch.equal(first, same):
                self.broken.append(f"determinism: output {name} differs under the same seed")
            if not torch.isfinite(first.double()).all():
                self.broken.append(f"output {name} is not finite")
            if torch.equal(first, other):
                self.broken.append(f"output {name} does not depend on the seed")

    def write_flag(self) -> None:
        """A chunk that is not written leaves no trace; one that is written does, where H > 1."""
        hidden = self._model.embed(self._inject_row(0), [0])
        other = tuple(self._like(x) for x in hidden)
        window = self._model.new_kv(0)
        first = self._run(0, hidden, [window], [0], write=False)
        self._run(0, other, [window], [0], write=False)
        again = self._run(0, hidden, [window], [0], write=False)
        if not _all_equal(first, again):
            self.broken.append("block: write=False left something in the KV")
        self._run(0, other, [window], [0], write=True)
        after = self._run(0, hidden, [window], [0], write=False)
        if self._spec.window_chunks > 1 and _all_equal(first, after):
            self.broken.append("block: write=True left nothing in the KV")
        window.reset()
        if not _all_equal(first, self._run(0, hidden, [window], [0], write=False)):
            self.broken.append("reset: the window still holds something")

    def refresh_and_noise(self) -> None:
        model, spec = self._model, self._spec
        latent = self._inject_row(0)
        observation = {k: v[:1] for k, v in self._observation.items()}
        if not _all_equal(model.refresh(latent, observation), latent):
            self.broken.append("refresh: the same observation changes the latent")
        hidden = model.embed(latent, [spec.steps - 1])
        first = self._noise[0]
        other = NoiseKey(seed=first.seed + 1, epoch=7, chunk_id=7)
        clean = [model.head(hidden, [spec.steps - 1], [key]) for key in (self._noise[0], other)]
        if not _all_equal(*clean):
            self.broken.append("head: noise was added after the last step")
        keys = (self._noise[0], other)
        if not _all_equal(model.renoise(clean[0], [spec.steps], [other]), clean[0]):
            self.broken.append("renoise: noise was added at step D")
        # Of the same chunk: an epoch's first one may be given all that it is to hold.
        same = NoiseKey(seed=other.seed, epoch=other.epoch, chunk_id=first.chunk_id)
        if _all_equal(*(model.inject(observation, [key]) for key in (first, same))):
            # An observation that leaves nothing to denoise.
            return
        for step in range(spec.steps):
            noised = [model.renoise(clean[0], [step], [key]) for key in keys]
            if _all_equal(*noised):
                self.broken.append(f"renoise: step {step} does not depend on the noise")

    def ownership(self) -> None:
        if self._spec.blocks < 2:
            return
        part = self._build([1])
        hidden = self._model.embed(self._inject_row(0), [0])
        condition = [part.condition(self._raw_conditions[0])]
        whole = self._run(1, hidden, [self._model.new_kv(1)], [0])
        if not _all_equal(part.block(1, hidden, [0], [part.new_kv(1)], condition, [True]), whole):
            self.broken.append("ownership: a block alone differs from the block of the whole model")
        try:
            part.block(0, hidden, [0], [part.new_kv(0)], condition, [True])
        except KeyError:
            return
        self.broken.append("ownership: calling a block that is not owned raised no KeyError")

    def memory(self) -> None:
        latent = self._inject_row(0)
        hidden = self._model.embed(latent, [0])
        for block in range(self._spec.blocks):
            named = self._spec.kv_bytes_of(block)
            decodes = self._spec.decoder_kv_bytes is not None and block == self._spec.blocks - 1
            window = self._model.new_kv(block)
            # What a decoder remembers is there after two chunks.
            fills = 2 if decodes else 0
            for chunk in range(self._spec.window_chunks + 2):
                if chunk >= fills and window.bytes != named:
                    self.broken.append(
                        f"kv_bytes: {named}, block {block} has {window.bytes} after {chunk} chunks"
                    )
                    break
                self._run(block, hidden, [window], [0])
                if decodes:
                    self._model.finish(latent, [window])
        if len(self._spec.block_weight_bytes) != self._spec.blocks:
            self.broken.append("block_weight_bytes: not one per block")

    def _run(
        self,
        block: int,
        hidden: Payload,
        windows: Sequence[KVWindow],
        rows: Sequence[int] | None = None,
        write: bool = True,
    ) -> Payload:
        """Rows `rows` (all by default) of the mixed batch through a block."""
        chosen = range(self._rows) if rows is None else rows
        conditions: list[StreamCondition] = [self._conditions[i] for i in chosen]
        steps = [self._step[i] for i in chosen]
        return self._model.block(block, hidden, steps, windows, conditions, [write] * len(steps))

    def _exit_windows(self, rows: int) -> list[KVWindow]:
        return [self._model.new_kv(self._spec.blocks - 1) for _ in range(rows)]

    def _inject_row(self, row: int) -> Payload:
        observation = {k: v[row : row + 1] for k, v in self._observation.items()}
        return self._model.inject(observation, [self._noise[row]])

    def _observe(self, rows: int) -> dict[str, Tensor]:
        drawn = {}
        for name, spec in self._spec.observation.items():
            shape = (rows, *spec.shape)
            if spec.dtype.is_floating_point:
                drawn[name] = torch.rand(shape, generator=self._generator, dtype=spec.dtype)
            else:
                drawn[name] = torch.randint(
                    0, 100, shape, generator=self._generator, dtype=spec.dtype
                )
        return drawn

    def _like(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        return torch.randn(x.shape, generator=self._generator).to(x)

    def _unchanged_input(
        self, where: str, payload: Payload, call: Callable[[Payload], Payload]
    ) -> Payload:
        before = tuple(x.clone() for x in payload)
        result = call(payload)
        if not _all_equal(before, payload):
            self.broken.append(f"{where}: changed its input in place")
        return result

    def _same_shapes(self, where: str, got: Payload, specs: Sequence[TensorSpec]) -> None:
        have = [(tuple(x.shape), x.dtype) for x in got]
        want = [((self._rows, *s.shape), s.dtype) for s in specs]
        if have != want:
            self.broken.append(f"{where}: {have}, spec {want}")

    def _equal_rows(self, where: str, batch: Payload, singles: Sequence[Payload]) -> None:
        for row, single in enumerate(singles):
            for part, (whole, alone) in enumerate(zip(batch, single, strict=True)):
                a, b = whole[row].double(), alone[0].double()
                off = float((a - b).abs().max()) if a.numel() else 0.0
                size = float(b.abs().max()) if b.numel() else 0.0
                if not off <= self._relative * max(size, 1e-6):
                    self.broken.append(f"{where}: row {row}, tensor {part} is off by {off:.3g}")


def _row(payload: Payload, row: int) -> Payload:
    return tuple(x[row : row + 1] for x in payload)


def _all_equal(a: Payload, b: Payload) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
