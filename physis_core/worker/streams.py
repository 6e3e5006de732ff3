"""The streams of one worker: opened, conditioned, restarted, closed, and their stages wired up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from physis_core.cluster.messages import (
    GivePast,
    Opening,
    RestartStream,
    RestoreWindow,
    SetCondition,
)
from physis_core.deployment.deployment import Deployment
from physis_core.worker.device import Device
from physis_core.worker.links.link import LinkReceiver, LinkSender
from physis_core.worker.stages import StageSlot, StreamSide
from physis_core.worker.tensor_arrays import payload_tensors, to_tensors


class WorkerStreams:
    """Owned by the worker's loop.

    Args:
        touch: tells the loop that a device may have something to start.
    """

    def __init__(
        self,
        deployment: Deployment,
        devices: dict[int, Device],
        senders: dict[tuple[int, int], LinkSender],
        receivers: dict[tuple[int, int], LinkReceiver],
        touch: Callable[[Device], None],
    ) -> None:
        self.sides: dict[int, StreamSide] = {}
        self._deployment = deployment
        self._graph = deployment.graph
        self._devices = devices
        self._senders = senders
        self._receivers = receivers
        self._touch = touch

    def open(self, opening: Opening) -> None:
        side = StreamSide(
            opening.stream,
            opening.route,
            opening.epoch,
            opening.seed,
            opening.refresh,
            opening.priority,
        )
        for version, values in opening.conditions:
            side.conditions[version] = self._condition(values)
        side.block_s = opening.block_s
        self._build_slots(side)
        self.sides[side.handle] = side

    def _condition(self, values: dict[str, Any]) -> dict[int, Any]:
        return {
            index: None if device.executor is None else device.executor.model.condition(values)
            for index, device in self._devices.items()
        }

    def set_condition(self, message: SetCondition) -> None:
        side = self.sides.get(message.stream)
        if side is None:
            return
        made = self._condition(message.condition)
        for version in [v for v in side.conditions if v < message.oldest_in_use]:
            del side.conditions[version]
        side.conditions[message.version] = made

    def restart_by_message(self, message: RestartStream) -> None:
        side = self.sides.get(message.stream)
        if side is not None and side.epoch < message.epoch:
            self.restart(side, message.epoch)

    def restart(self, side: StreamSide, epoch: int) -> None:
        self._drop(side)
        side.epoch = epoch
        side.newest, side.newest_number = None, 0
        side.past.clear()
        kept = {slot.stage: slot.kv for slot in side.slots.values()}
        self._build_slots(side, kept)

    def resume(self, opening: Opening) -> None:
        """Stand ready, empty, for a new epoch after a loss, over the links of now.

        A worker that was started anew hears of the stream for the first time.
        """
        side = self.sides.get(opening.stream)
        if side is None:
            self.open(opening)
            return
        if opening.epoch >= side.epoch:
            # Also where the epoch is the same: the links may be others.
            self.restart(side, opening.epoch)

    def restore(self, message: RestoreWindow) -> None:
        """Give a stage back its KV, as it was after some chunk."""
        slot = self._resumed(message.stream, message.epoch).slots[message.stage]
        if slot.kv is not None and message.saved:
            slot.kv.restore(to_tensors(message.saved))

    def take_past(self, message: GivePast) -> None:
        """A clean latent of before the loss, for the chunk that will run it again."""
        side = self._resumed(message.stream, message.epoch)
        side.past[message.chunk] = payload_tensors(message.latent)

    def _resumed(self, stream: int, epoch: int) -> StreamSide:
        side = self.sides.get(stream)
        if side is None or side.epoch != epoch:
            raise ValueError(f"stream {stream} is not in epoch {epoch} here")
        return side

    def close(self, handle: int) -> None:
        side = self.sides.pop(handle, None)
        if side is not None:
            self._drop(side)

    def _drop(self, side: StreamSide) -> None:
        """Forget the chunks of this stream here; what runs now is ignored when it ends."""
        for slot in side.slots.values():
            slot.dead = True
            if slot.fifo:
                slot.device.waiting.remove(slot)
                slot.fifo.clear()
            self._touch(slot.device)

    def _build_slots(self, side: StreamSide, kept: dict[int, Any] | None = None) -> None:
        graph = self._graph
        route = self._deployment.routes[side.route]
        side.slots = {}
        for stage in range(graph.stages):
            device = self._devices.get(route.device_of(stage))
            if device is not None:
                where = graph.stage(stage)
                slot = StageSlot(side, device, stage, where.step, where.block)
                slot.writes = graph.writes_kv(where)
                slot.exits = stage == graph.exit_index
                side.slots[stage] = slot
        for stage, slot in side.slots.items():
            self._connect(slot, route.device_of(stage), side)
            following = stage + 1
            if following < graph.stages:
                self._lead_on(slot, route.device_of(stage), route.device_of(following), side)
        self._give_kv(side, kept)
        self._predict_rest(side)

    def _connect(self, slot: StageSlot, here: int, side: StreamSide) -> None:
        if slot.stage == 0:
            return
        before = self._deployment.routes[side.route].device_of(slot.stage - 1)
        slot.source_device = before
        if before == here:
            return
        if before in self._devices:
            slot.source = side.slots[slot.stage - 1]
        else:
            slot.source_link = self._receivers[(before, here)]

    def _lead_on(self, slot: StageSlot, here: int, there: int, side: StreamSide) -> None:
        if there in self._devices:
            slot.next = side.slots[slot.stage + 1]
        else:
            slot.link = self._senders[(here, there)]
        if there != here:
            slot.bounded = True
            slot.credits = self._deployment.credits

    def _give_kv(self, side: StreamSide, kept: dict[int, Any] | None) -> None:
        clean = self._graph.kv == "clean"
        shared: dict[int, Any] = {}
        last_pass = self._graph.passes - 1
        for stage, slot in side.slots.items():
            executor = slot.device.executor
            if executor is not None:
                kv = shared.get(slot.block) if clean else None
                if kv is None:
                    kv = kept[stage] if kept is not None else executor.model.new_kv(slot.block)
                    kv.reset()
                    shared[slot.block] = kv
                slot.kv = kv
            if clean and slot.step == 0:
                slot.gate = side.slots[last_pass * self._graph.blocks + slot.block]

    def _predict_rest(self, side: StreamSide) -> None:
        """Cost of what follows each stage until the exit, for the slack."""
        rest_s = 0.0
        last = self._graph.exit_index
        for stage in range(self._graph.stages - 1, -1, -1):
            slot = side.slots.get(stage)
            if slot is not None:
                slot.remaining_s = rest_s
            if stage <= last:
                rest_s += side.block_s[stage % self._graph.blocks]
