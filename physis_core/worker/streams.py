"""The streams of one worker: their stages in the pipeline, and the tensors that belong to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from physis_core.cluster.messages import (
    GivePast,
    Observe,
    Opening,
    RestartStream,
    RestoreWindow,
    SetCondition,
)
from physis_core.deployment.deployment import Deployment
from physis_core.model.protocol import Payload, StagedModel
from physis_core.pipeline.pipeline import Pipeline
from physis_core.pipeline.stages import Layout, Slot
from physis_core.types import Refresh, StageGraph
from physis_core.worker.tensor_arrays import payload_tensors, to_tensors


class StreamTensors:
    """What the computation needs of one stream of `model` beside its chunks.

    `conditions`: version -> device index -> the model's tensors. `kv`: stage -> its window; with
    clean KV all steps of a block share one. `newest`, `newest_number`: the newest observation.
    `past`: chunk id below 0 -> its clean latent, at the workers where a denoising step begins.
    """

    __slots__ = ("conditions", "kv", "model", "newest", "newest_number", "past", "refresh", "seed")

    def __init__(self, model: str, seed: int, refresh: Refresh) -> None:
        self.model = model
        self.seed = seed
        self.refresh = refresh
        self.conditions: dict[int, dict[int, Any]] = {}
        self.kv: dict[int, Any] = {}
        self.newest: Mapping[str, Any] | None = None
        self.newest_number = 0
        self.past: dict[int, Payload] = {}

    def forget(self) -> None:
        """A new epoch: nothing of the one before may be seen again."""
        self.newest, self.newest_number = None, 0
        self.past.clear()
        for window in self.kv.values():
            window.reset()

    def kv_bytes(self, stages: Iterable[int]) -> int:
        """Of these stages; a window that several share counts once."""
        windows = {id(self.kv[s]): self.kv[s] for s in stages if s in self.kv}
        return sum(window.bytes for window in windows.values())


class WorkerStreams:
    """Owned by the worker's loop.

    Args:
        models: by device and name; emulated devices have none, and their stages no tensors.
    """

    def __init__(
        self,
        deployment: Deployment,
        pipeline: Pipeline,
        models: Mapping[int, Mapping[str, StagedModel]],
    ) -> None:
        self.tensors: dict[int, StreamTensors] = {}
        self._deployment = deployment
        self._pipeline = pipeline
        self._models = models

    def open(self, opening: Opening) -> None:
        deployment = self._deployment
        route = deployment.routes[opening.route]
        graph = route.partition.graph
        tensors = StreamTensors(route.model, opening.seed, opening.refresh)
        for version, values in opening.conditions:
            tensors.conditions[version] = self._condition(route.model, values)
        stream = self._pipeline.open(
            opening.stream,
            epoch=opening.epoch,
            priority=opening.priority,
            layout=Layout(
                graph=graph,
                device_of=[route.device_of(stage) for stage in range(graph.stages)],
                blocks=deployment.keys_of(opening.route),
                block_s=opening.block_s,
                model=deployment.model_number(route.model),
            ),
        )
        try:
            tensors.kv = self._new_kv(route.model, graph, stream.slots.values())
        except BaseException:
            self._pipeline.close(opening.stream)
            raise
        stream.versions.update(tensors.conditions)
        self.tensors[opening.stream] = tensors

    def _condition(self, name: str, values: dict[str, Any]) -> dict[int, Any]:
        """By device; None where it holds nothing of the model."""
        made: dict[int, Any] = dict.fromkeys(self._pipeline.devices)
        for index, models in self._models.items():
            if name in models:
                made[index] = models[name].condition(values)
        return made

    def _new_kv(self, name: str, graph: StageGraph, slots: Iterable[Slot]) -> dict[int, Any]:
        windows: dict[int, Any] = {}
        shared: dict[int, Any] = {}
        for slot in slots:
            models = self._models.get(slot.device.index)
            if models is None:
                continue
            block = slot.stage % graph.blocks
            window = shared.get(block) if graph.kv == "clean" else None
            if window is None:
                window = shared[block] = models[name].new_kv(block)
            windows[slot.stage] = window
        return windows

    def set_condition(self, message: SetCondition) -> None:
        stream = self._pipeline.streams.get(message.stream)
        if stream is None:
            return
        tensors = self.tensors[message.stream]
        made = self._condition(tensors.model, message.condition)
        conditions = tensors.conditions
        for version in [v for v in conditions if v < message.oldest_in_use]:
            del conditions[version]
            stream.versions.discard(version)
        conditions[message.version] = made
        stream.versions.add(message.version)

    def observe(self, message: Observe) -> None:
        """Keep the newest observation, for `refresh: every_step`."""
        stream = self._pipeline.streams.get(message.stream)
        if stream is not None and stream.epoch == message.epoch:
            tensors = self.tensors[message.stream]
            tensors.newest, tensors.newest_number = message.observation, message.number

    def restart(self, message: RestartStream) -> None:
        self.restart_if_older(message.stream, message.epoch)

    def restart_if_older(self, handle: int, epoch: int) -> None:
        stream = self._pipeline.streams.get(handle)
        if stream is not None and stream.epoch < epoch:
            self._restart(handle, epoch)

    def _restart(self, handle: int, epoch: int) -> None:
        self._pipeline.restart(handle, epoch)
        self.tensors[handle].forget()

    def resume(self, opening: Opening) -> None:
        """Stand ready, empty, for a new epoch after a loss, over the links of now.

        A worker that was started anew hears of the stream for the first time.
        """
        stream = self._pipeline.streams.get(opening.stream)
        if stream is None:
            self.open(opening)
        elif opening.epoch >= stream.epoch:
            # Also where the epoch is the same: the links may be others.
            self._restart(opening.stream, opening.epoch)

    def restore(self, message: RestoreWindow) -> None:
        """Give a stage back its KV, as it was after some chunk."""
        window = self._resumed(message.stream, message.epoch).kv.get(message.stage)
        if window is not None and message.saved:
            window.restore(to_tensors(message.saved))

    def take_past(self, message: GivePast) -> None:
        """A clean latent of before the loss, for the chunk that will run it again."""
        tensors = self._resumed(message.stream, message.epoch)
        tensors.past[message.chunk] = payload_tensors(message.latent)

    def _resumed(self, handle: int, epoch: int) -> StreamTensors:
        stream = self._pipeline.streams.get(handle)
        if stream is None or stream.epoch != epoch:
            raise ValueError(f"stream {handle} is not in epoch {epoch} here")
        return self.tensors[handle]

    def close(self, handle: int) -> None:
        if self._pipeline.close(handle):
            del self.tensors[handle]
