"""Computes a batch of one block: the tensors of its tasks go through the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from physis_core.model.protocol import KVWindow, NoiseKey, Payload, StagedModel
from physis_core.pipeline.stages import MAX_TOUCHES, InFlight
from physis_core.worker.streams import StreamTensors

TaskFailure = tuple[InFlight, Exception]


class ModelRunner:
    """Runs batches of one block on one torch device. One thread."""

    def __init__(self, model: StagedModel, device: torch.device) -> None:
        self.model = model
        self.device = device
        graph = model.spec.graph
        self._steps = graph.steps
        self._blocks = graph.blocks

    def run(
        self, tasks: Sequence[InFlight], streams: Mapping[int, StreamTensors]
    ) -> list[TaskFailure]:
        """Compute the batch: each task's payload becomes that of its next stage.

        Tasks whose own observation does not fit are left out and returned with the reason; an error
        inside the block concerns all tasks and is raised.
        """
        with torch.inference_mode():
            if tasks[0].stage % self._blocks == 0:
                failures: list[TaskFailure] = []
                entered: list[InFlight] = []
                latents: list[Payload] = []
                for task in tasks:
                    try:
                        latents.append(self._enter(task, streams[task.stream]))
                        entered.append(task)
                    except Exception as error:  # noqa: BLE001
                        # Whatever a model raises about one stream's observation ends that stream
                        # alone.
                        failures.append((task, error))
                if entered:
                    hidden = self.model.embed(_joined(latents), [task.step for task in entered])
                    self._run(entered, hidden, streams)
                return failures
            self._run(tasks, _joined([self._here(task.payload) for task in tasks]), streams)
            return []

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _enter(self, task: InFlight, stream: StreamTensors) -> Payload:
        if task.chunk_id < 0:
            clean = self._here(stream.past[task.chunk_id])
            return self.model.renoise(clean, [task.step], [_noise(task)])
        if task.step == 0:
            observation, task.observation = task.observation, None
            return self.model.inject(self._batch_of_one(observation), [_noise(task)])
        payload = self._here(task.payload)
        if (
            stream.refresh == "every_step"
            and task.step < self._steps
            and stream.newest is not None
            and stream.newest_number > task.touches[-1]
            and len(task.touches) < MAX_TOUCHES
        ):
            payload = self.model.refresh(payload, self._batch_of_one(stream.newest))
            task.touches = (*task.touches, stream.newest_number)
        return payload

    def _here(self, payload: Payload) -> Payload:
        """From another device of the same worker, or from a link's buffer on the host."""
        return tuple(part.to(self.device, non_blocking=True) for part in payload)

    def _batch_of_one(self, observation: Any) -> dict[str, torch.Tensor]:
        return {
            name: torch.tensor(value).unsqueeze(0).to(self.device)
            for name, value in observation.items()
        }

    def _run(
        self, tasks: Sequence[InFlight], hidden: Payload, streams: Mapping[int, StreamTensors]
    ) -> None:
        block = tasks[0].stage % self._blocks
        kv, conditions, writes = [], [], []
        for task in tasks:
            stream, slot = streams[task.stream], task.slot
            kv.append(stream.kv[task.stage])
            conditions.append(stream.conditions[task.version][slot.device.index])
            writes.append(slot.writes)
        steps = [task.step for task in tasks]
        hidden = self.model.block(block, hidden, steps, kv, conditions, writes)
        if block == self._blocks - 1:
            self._leave_step(tasks, hidden, kv)
            return
        for task, row in zip(tasks, _split(hidden, len(tasks)), strict=True):
            task.payload = row

    def _leave_step(
        self, tasks: Sequence[InFlight], hidden: Payload, kv: Sequence[KVWindow]
    ) -> None:
        going_on = [i for i, task in enumerate(tasks) if task.step < self._steps]
        for task in tasks:
            task.payload = ()
        if not going_on:
            return
        if len(going_on) < len(tasks):
            hidden = tuple(t[going_on] for t in hidden)
        rows = [tasks[i] for i in going_on]
        latent = self.model.head(
            hidden, [task.step for task in rows], [_noise(task) for task in rows]
        )
        for at, row in zip(going_on, _split(latent, len(rows)), strict=True):
            task = tasks[at]
            task.payload = row
            if task.step == self._steps - 1:
                made = self.model.finish(row, [kv[at]])
                task.outputs = {name: value[0].clone() for name, value in made.items()}


def _noise(task: InFlight) -> NoiseKey:
    return NoiseKey(seed=task.seed, epoch=task.epoch, chunk_id=task.chunk_id)


def _joined(rows: Sequence[Payload]) -> Payload:
    if len(rows) == 1:
        return rows[0]
    return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))


def _split(payload: Payload, rows: int) -> list[Payload]:
    if rows == 1:
        return [payload]
    return [tuple(part[i : i + 1] for part in payload) for i in range(rows)]
