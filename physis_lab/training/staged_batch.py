"""Several streams of one staged model in lockstep, one batch row each, without an engine.

Row i computes what `ReferenceStream` with seed + i computes, within floating-point tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from physis_core.model.protocol import NoiseKey, Payload, StagedModel
from physis_core.types import Stage


class StagedBatch:
    """`rows` streams that run their chunks at the same time."""

    def __init__(self, model: StagedModel, *, rows: int, seed: int) -> None:
        self._model = model
        self._graph = model.spec.graph
        self._rows = rows
        self._seed = seed
        self._chunk = 0
        self._kv = {}
        for block in range(self._graph.blocks):
            clean = [model.new_kv(block) for _ in range(rows)]
            for step in range(self._graph.passes):
                noisy = self._graph.kv == "noisy"
                kv = [model.new_kv(block) for _ in range(rows)] if noisy else clean
                self._kv[Stage(step=step, block=block)] = kv

    @torch.inference_mode()
    def run_chunk(
        self,
        observation: Mapping[str, Tensor],
        newer: Mapping[int, Mapping[str, Tensor]] | None = None,
    ) -> dict[str, Tensor]:
        """observation [rows, ...] by name -> outputs [rows, ...] by name.

        Args:
            newer: denoising step -> the observation that enters there (`refresh: every_step`).
        """
        model, graph, rows = self._model, self._graph, self._rows
        noise = [
            NoiseKey(seed=self._seed + row, epoch=0, chunk_id=self._chunk) for row in range(rows)
        ]
        self._chunk += 1
        latent = model.inject(observation, noise)
        for step in range(graph.steps):
            if newer and step in newer:
                latent = model.refresh(latent, newer[step])
            hidden = self._run_blocks(latent, step)
            latent = model.head(hidden, [step] * rows, noise)
        outputs = {name: value.clone() for name, value in model.finish(latent, ()).items()}
        if graph.kv == "clean":
            self._run_blocks(latent, graph.steps)
        return outputs

    def _run_blocks(self, latent: Payload, step: int) -> Payload:
        rows = self._rows
        hidden = self._model.embed(latent, [step] * rows)
        for block in range(self._graph.blocks):
            stage = Stage(step=step, block=block)
            hidden = self._model.block(
                block,
                hidden,
                [step] * rows,
                self._kv[stage],
                [{}] * rows,
                [self._graph.writes_kv(stage)] * rows,
            )
        return hidden
