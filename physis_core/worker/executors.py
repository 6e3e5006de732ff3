"""What runs a batch: a CPU at once, a GPU beside the loop, or an emulated device on time alone.

One interface. The loop launches a batch and asks later when it ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from physis_core.model.protocol import StagedModel
from physis_core.pipeline.costs import Costs, CostTable, OnlineCosts
from physis_core.pipeline.emulation import DurationNoise
from physis_core.pipeline.stages import Device, InFlight
from physis_core.worker.model_runner import ModelRunner, TaskFailure
from physis_core.worker.streams import StreamTensors

_POLL_S = 20e-6
"""Between two looks at a GPU that is at work: it does not wake the loop."""


class Launched(Protocol):
    """Work that a GPU was given and may not have done yet."""

    def query(self) -> bool: ...


class Executor(Protocol):
    """Runs one batch at a time. Times are of the clock of the `now_s` that it is given.

    `costs` predict its batches; executors that compute learn from what batches took.
    `models`: by name; None where nothing is computed.
    """

    @property
    def costs(self) -> Costs: ...

    @property
    def models(self) -> Mapping[str, StagedModel] | None: ...

    def launch(
        self, device: Device, streams: Mapping[int, StreamTensors], now_s: float
    ) -> Sequence[TaskFailure]:
        """Start `device.running`, and set `device.started_s`.

        Returns the tasks that failed by themselves; an error that concerns all of them is raised.
        """
        ...

    def look_s(self, now_s: float) -> float:
        """When to ask `ended_s` next."""
        ...

    def ended_s(self, device: Device, now_s: float) -> float | None:
        """When the batch ended; None while it runs. Raises RuntimeError where it failed."""
        ...

    def workspace_bytes(self, weight_bytes: int) -> int | None:
        """Most memory ever held beside what is counted elsewhere; None where unknown."""
        ...


class CpuExecutor:
    """Computes in `launch`. `runners`: by model; a batch is of one block of one model."""

    def __init__(
        self, device: torch.device, runners: Mapping[str, ModelRunner], costs: CostTable
    ) -> None:
        self.device = device
        self.runners = runners
        self.costs = OnlineCosts(costs)
        self._computed = 0
        """Tasks of the batch that did not fail."""

    @property
    def models(self) -> Mapping[str, StagedModel]:
        return {name: runner.model for name, runner in self.runners.items()}

    def launch(
        self, device: Device, streams: Mapping[int, StreamTensors], now_s: float
    ) -> Sequence[TaskFailure]:
        device.started_s = now_s
        runner = self.runners[streams[device.running[0].stream].model]
        failures = runner.run(device.running, streams)
        self._computed = len(device.running) - len(failures)
        return failures

    def look_s(self, now_s: float) -> float:
        return now_s

    def ended_s(self, device: Device, now_s: float) -> float | None:
        if self._computed:
            block = device.running[0].block
            self.costs.observe(block, self._computed, now_s - device.started_s)
        return now_s

    def workspace_bytes(self, weight_bytes: int) -> int | None:
        return None


class CudaExecutor(CpuExecutor):
    """Launches work on a GPU and does not wait for it.

    All devices of one GPU share its current CUDA stream, so that a payload may go from one to the
    next without a wait and its memory is never given away too early.
    """

    _launched: Launched | None = None

    def launch(
        self, device: Device, streams: Mapping[int, StreamTensors], now_s: float
    ) -> Sequence[TaskFailure]:
        failures = super().launch(device, streams, now_s)
        self._launched = self._event()
        return failures

    def _event(self) -> Launched:
        """An event behind all that was launched so far."""
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        launched: Launched = event
        return launched

    def look_s(self, now_s: float) -> float:
        return now_s + _POLL_S

    def ended_s(self, device: Device, now_s: float) -> float | None:
        assert self._launched is not None
        return super().ended_s(device, now_s) if self._launched.query() else None

    def workspace_bytes(self, weight_bytes: int) -> int | None:
        peak: int = torch.cuda.max_memory_allocated(self.device)
        return max(0, peak - weight_bytes)


class EmulatedExecutor:
    """Takes the time that a profile says, and computes nothing."""

    models = None

    def __init__(self, costs: CostTable, noise: DurationNoise | None) -> None:
        # It takes exactly what the profile says, so there is nothing to learn.
        self.costs = costs
        self._noise = noise
        self._ends_s = 0.0

    def launch(
        self, device: Device, streams: Mapping[int, StreamTensors], now_s: float
    ) -> Sequence[TaskFailure]:
        first = device.running[0]
        seconds = self.costs.predict_s(first.block, len(device.running))
        if self._noise is not None:
            seconds *= self._noise.factor(first.seq, first.stage)
        device.started_s = max(self._start_s(device.running), device.stalled_until_s)
        self._ends_s = device.started_s + seconds
        return ()

    def _start_s(self, tasks: Sequence[InFlight]) -> float:
        """When a device would have begun. As a GPU does with what was launched ahead, it goes on at
        the end of its last batch if all that it needed was there; the loop notices later.

        Sending, credits and decisions keep the loop's own, later times.
        """
        start_s = self._ends_s
        for task in tasks:
            start_s = max(start_s, task.ready_s, task.slot.credited_s)
        return start_s

    def look_s(self, now_s: float) -> float:
        return self._ends_s

    def ended_s(self, device: Device, now_s: float) -> float | None:
        return self._ends_s if self._ends_s <= now_s else None

    def workspace_bytes(self, weight_bytes: int) -> int | None:
        return None


EXECUTORS: dict[str, type[CpuExecutor]] = {"cpu": CpuExecutor, "cuda": CudaExecutor}
"""By type of the torch device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """A device of this worker. `activation_bytes` are of one waiting chunk's payload."""

    state: Device
    executor: Executor
    weight_bytes: int
    activation_bytes: int
