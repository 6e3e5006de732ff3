"""The reference run of a staged model: one stage after another in one process.

Whatever the pipeline does (partition, batches, processes, jitter), its chunks must equal these for
the same stream seed, epoch, chunk ids, observations and conditions. Keep this file simple.

    stream = ReferenceStream(model, seed=7)
    outputs = stream.run_chunk({0: observation})                 # `refresh: entry`
    outputs = stream.run_chunk({0: first, 1: newer, 3: newest})  # `refresh: every_step`

Streams do not see each other: make one `ReferenceStream` for each. The model may be shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from physis_core.model.protocol import KVWindow, NoiseKey, Payload, StagedModel
from physis_core.types import Array, Stage

StepObservations = Mapping[int, Mapping[str, Array | Tensor]]
"""Denoising step -> the observation that is new at its entry (arrays without a batch dimension).

Step 0 is needed, and is what the chunk is injected with; a step that is missing goes on with what
it has.
"""


class ReferenceStream:
    """One stream from its first chunk on.

    Args:
        model: must own all its blocks.
        seed, epoch: name the noise together with the chunk id, as in `NoiseKey`.
        condition: what a user would set for the stream (`StagedModel.condition`).
    """

    def __init__(
        self,
        model: StagedModel,
        *,
        seed: int,
        epoch: int = 0,
        condition: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._graph = model.spec.graph
        self._seed = seed
        self._epoch = epoch
        self._next_chunk = 0
        self.clean: Payload = ()
        """The clean latent of the last chunk, [1, ...]: what `rebuild` takes."""
        self._kv: dict[Stage, KVWindow] = {}
        for block in range(self._graph.blocks):
            if self._graph.kv == "noisy":
                for step in range(self._graph.steps):
                    self._kv[Stage(step=step, block=block)] = model.new_kv(block)
            else:
                shared = model.new_kv(block)
                for step in range(self._graph.passes):
                    self._kv[Stage(step=step, block=block)] = shared
        self.set_condition(condition or {})

    def set_condition(self, values: Mapping[str, Any]) -> None:
        """Holds from the next chunk on."""
        with torch.inference_mode():
            self._condition = self._model.condition(values)

    def run_chunk(
        self, observations: StepObservations, chunk_id: int | None = None
    ) -> dict[str, Tensor]:
        """Run one chunk through all stages and return its outputs, without a batch dimension.

        `chunk_id` counts up from 0 by itself; give it where chunks were dropped before they
        entered.
        """
        model, graph = self._model, self._graph
        assert 0 in observations
        assert all(0 <= step < graph.steps for step in observations)
        chunk = self._next_chunk if chunk_id is None else chunk_id
        assert chunk >= self._next_chunk, "chunks run in order"
        self._next_chunk = chunk + 1
        noise = [NoiseKey(seed=self._seed, epoch=self._epoch, chunk_id=chunk)]
        with torch.inference_mode():
            latent = model.inject(_batch_of_one(observations[0]), noise)
            for step in range(graph.steps):
                if step > 0 and step in observations:
                    latent = model.refresh(latent, _batch_of_one(observations[step]))
                hidden = self._run_blocks(model.embed(latent, [step]), step)
                latent = model.head(hidden, [step], noise)
            self.clean = latent
            exit_kv = self._kv[Stage(step=graph.steps - 1, block=graph.blocks - 1)]
            made = model.finish(latent, [exit_kv])
            outputs = {name: value[0].clone() for name, value in made.items()}
            if graph.kv == "clean":
                self._run_blocks(model.embed(latent, [graph.steps]), graph.steps)
        return outputs

    def _run_blocks(self, hidden: tuple[Tensor, ...], step: int) -> tuple[Tensor, ...]:
        for block in range(self._graph.blocks):
            stage = Stage(step=step, block=block)
            hidden = self._model.block(
                block,
                hidden,
                [step],
                [self._kv[stage]],
                [self._condition],
                [self._graph.writes_kv(stage)],
            )
        return hidden

    def snapshot(self) -> dict[Stage, Mapping[str, Tensor]]:
        """The KV of every stage, between two chunks."""
        return {stage: kv.snapshot() for stage, kv in self._kv.items()}

    def restore(self, saved: Mapping[Stage, Mapping[str, Tensor]]) -> None:
        """Go on as a stream of this model did whose `snapshot` this is."""
        for stage, kv in self._kv.items():
            kv.restore(saved[stage])

    def rebuild(self, past: Sequence[Payload]) -> None:
        """Make the KV from clean latents, oldest first: noised to each step's level and run
        through its stages.

        They have the chunk ids -n .. -1, so that no other chunk draws their noise.
        """
        model = self._model
        with torch.inference_mode():
            for at, clean in enumerate(past):
                key = NoiseKey(seed=self._seed, epoch=self._epoch, chunk_id=at - len(past))
                for step in range(self._graph.passes):
                    latent = model.renoise(clean, [step], [key])
                    self._run_blocks(model.embed(latent, [step]), step)

    @property
    def kv_bytes(self) -> int:
        return sum(kv.bytes for kv in {id(kv): kv for kv in self._kv.values()}.values())


def run_stream(
    model: StagedModel,
    chunks: Iterable[StepObservations],
    *,
    seed: int,
    epoch: int = 0,
    condition: Mapping[str, Any] | None = None,
) -> list[dict[str, Tensor]]:
    """Outputs of every chunk of one stream, in order."""
    stream = ReferenceStream(model, seed=seed, epoch=epoch, condition=condition)
    return [stream.run_chunk(observations) for observations in chunks]


def _batch_of_one(observation: Mapping[str, Array | Tensor]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(value).unsqueeze(0) for name, value in observation.items()}
