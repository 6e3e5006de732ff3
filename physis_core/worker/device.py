"""A device of a worker: what waits for it, what it runs, and how it computes a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from physis_core.model.protocol import NoiseKey, Payload, StagedModel
from physis_core.pipeline.costs import Costs, CostTable, OnlineCosts
from physis_core.pipeline.emulation import DurationNoise
from physis_core.worker.links.envelope import MAX_TOUCHES, InFlight
from physis_core.worker.stages import StageSlot

TaskFailure = tuple[InFlight, Exception]


class Launched(Protocol):
    """Work that a device was given and may not have done yet."""

    def query(self) -> bool: ...


class Device:
    """`activation_bytes` are of one waiting chunk's payload, `most_waiting` of how many at once.
    `waiting` are the slots with a chunk in their queue; `running` is the batch under way.
    """

    __slots__ = (
        "activation_bytes",
        "batches",
        "busy_s",
        "costs",
        "dirty",
        "emulated",
        "ends_s",
        "executor",
        "index",
        "launched",
        "learned",
        "most_waiting",
        "noise",
        "running",
        "started_s",
        "waiting",
        "weight_bytes",
    )

    def __init__(
        self,
        index: int,
        *,
        executor: ModelExecutor | None,
        costs: CostTable,
        noise: DurationNoise | None,
        weight_bytes: int = 0,
        activation_bytes: int = 0,
    ) -> None:
        self.index = index
        self.weight_bytes = weight_bytes
        self.activation_bytes = activation_bytes
        self.most_waiting = 0
        self.executor = executor
        # An emulated device takes exactly what the profile says, so there is nothing to learn.
        self.learned = OnlineCosts(costs) if executor is not None else None
        self.costs: Costs = self.learned if self.learned is not None else costs
        self.emulated = executor is None
        self.noise = noise
        self.waiting: list[StageSlot] = []
        self.running: tuple[InFlight, ...] = ()
        self.started_s = 0.0
        self.ends_s = 0.0
        self.launched: Launched | None = None
        self.dirty = False
        self.batches = 0
        self.busy_s = 0.0

    def workspace_bytes(self) -> int | None:
        """Most that torch ever held on the device beside what is counted; unknown on a CPU."""
        if self.executor is None or self.executor.device.type != "cuda":
            return None
        peak: int = torch.cuda.max_memory_allocated(self.executor.device)
        return max(0, peak - self.weight_bytes)


class ModelExecutor:
    """Runs batches of one block on one torch device. One thread."""

    def __init__(self, model: StagedModel, device: torch.device) -> None:
        self.model = model
        self.device = device
        graph = model.spec.graph
        self._steps = graph.steps
        self._last = graph.blocks - 1

    def run(self, tasks: Sequence[InFlight]) -> list[TaskFailure]:
        """Compute the batch: each task's payload becomes that of its next stage.

        Tasks whose own observation does not fit are left out and returned with the reason; an error
        inside the block is everybody's and is raised.
        """
        with torch.inference_mode():
            if tasks[0].block == 0:
                failures: list[TaskFailure] = []
                entered: list[InFlight] = []
                latents: list[Payload] = []
                for task in tasks:
                    try:
                        latents.append(self._enter(task))
                        entered.append(task)
                    except Exception as error:  # noqa: BLE001
                        # Whatever a model raises about one stream's observation ends that stream
                        # alone.
                        failures.append((task, error))
                if entered:
                    latent = _joined(latents)
                    self._run(entered, self.model.embed(latent, [task.step for task in entered]))
                return failures
            self._run(tasks, _joined([self._here(task.payload) for task in tasks]))
            return []

    @property
    def asynchronous(self) -> bool:
        """Whether `run` returns before the device has computed: then ask what `launched` gives."""
        return self.device.type == "cuda"

    def launched(self) -> torch.cuda.Event:
        """An event behind all that was launched so far; `query()` says whether it was reached.

        All virtual devices of one GPU share its current stream, so that a payload may go from one
        to the next without a wait and its memory is never given away too early.
        """
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _enter(self, task: InFlight) -> Payload:
        slot = task.slot
        assert slot is not None
        if task.chunk_id < 0:
            clean = self._here(slot.side.past[task.chunk_id])
            return self.model.renoise(clean, [task.step], [_noise(task)])
        if task.step == 0:
            observation, task.observation = task.observation, None
            return self.model.inject(self._batch_of_one(observation), [_noise(task)])
        side = slot.side
        payload = self._here(task.payload)
        if (
            side.refresh == "every_step"
            and task.step < self._steps
            and side.newest is not None
            and side.newest_number > task.touches[-1]
            and len(task.touches) < MAX_TOUCHES
        ):
            payload = self.model.refresh(payload, self._batch_of_one(side.newest))
            task.touches = (*task.touches, side.newest_number)
        return payload

    def _here(self, payload: Payload) -> Payload:
        """From another device of the same worker, or from a link's buffer on the host."""
        return tuple(part.to(self.device, non_blocking=True) for part in payload)

    def _batch_of_one(self, observation: Any) -> dict[str, torch.Tensor]:
        return {
            name: torch.tensor(value).unsqueeze(0).to(self.device)
            for name, value in observation.items()
        }

    def _run(self, tasks: Sequence[InFlight], hidden: Payload) -> None:
        block = tasks[0].block
        kv, conditions, writes = [], [], []
        for task in tasks:
            slot = task.slot
            assert slot is not None
            kv.append(slot.kv)
            conditions.append(slot.side.conditions[task.version][slot.device.index])
            writes.append(slot.writes)
        steps = [task.step for task in tasks]
        hidden = self.model.block(block, hidden, steps, kv, conditions, writes)
        if block == self._last:
            self._leave_step(tasks, hidden)
            return
        for task, row in zip(tasks, _split(hidden, len(tasks)), strict=True):
            task.payload = row

    def _leave_step(self, tasks: Sequence[InFlight], hidden: Payload) -> None:
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
        for task, row in zip(rows, _split(latent, len(rows)), strict=True):
            task.payload = row
            if task.step == self._steps - 1:
                task.outputs = {
                    name: value[0].clone() for name, value in self.model.finish(row).items()
                }


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
