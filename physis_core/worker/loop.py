"""The event loop of one worker: it takes what comes in and lets its devices take their turns.

A turn: take what came in, finish what is done, start what may start, send credits. Who holds the
lock of turns owns all of this state; other threads only append to `inbox`. Mostly that is the
loop's own thread, which sleeps between events. Where it sleeps and a chunk comes, the thread that
received the chunk takes one turn itself: to wake the other one would take as long as the whole way
from process to process.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import Message, Wake, sleep_precisely
from physis_core.deployment.deployment import Deployment
from physis_core.pipeline.stages import StreamSide
from physis_core.types import Array, UserError
from physis_core.worker.device import Device
from physis_core.worker.device_turns import DeviceTurns
from physis_core.worker.links.envelope import InFlight
from physis_core.worker.links.link import Credit, LinkReceiver, LinkSender
from physis_core.worker.report import (
    device_counters,
    edge_counters,
    places_taken,
    queue_lengths,
    recorded,
)
from physis_core.worker.snapshot_copies import SnapshotCopies
from physis_core.worker.streams import WorkerStreams

_SPIN_S = 25e-6
"""Closer than this to an event the loop looks again and again: going to sleep takes longer."""

_POLL_S = 20e-6
"""Between two looks at a GPU that is at work."""

_MESSAGES_A_TURN = 64


class WorkerLoop:
    """Args:
    devices: by index, only this worker's.
    reply: called by whoever has the turn with what the front should know.
    reply_large: as `reply`, from another thread and with much in it.
    clock: gives the front's time.
    """

    def __init__(
        self,
        deployment: Deployment,
        devices: dict[int, Device],
        *,
        reply: Callable[[Message], object],
        reply_large: Callable[[Message], object],
        clock: HostClock,
    ) -> None:
        self._clock = clock
        self.deployment = deployment
        self.devices = devices
        self.inbox: deque[tuple[str, Any]] = deque()
        self.wake = Wake()
        self._turn = threading.Lock()
        self._error: BaseException | None = None
        # A second thread that computes would bring its own team of threads; and where nothing
        # computes in the turn itself, there are timers, which the loop's thread must know of.
        self._may_deliver = deployment.threads == 1 and all(
            device.executor is not None and not device.executor.asynchronous
            for device in devices.values()
        )
        self.senders: dict[tuple[int, int], LinkSender] = {}
        self.receivers: dict[tuple[int, int], LinkReceiver] = {}
        self.late_dropped = 0
        self._reply = reply
        self._link_generation: dict[tuple[int, int], int] = {}
        self._copies: SnapshotCopies | None = None
        if deployment.recovery == "snapshot":
            self._copies = SnapshotCopies(deployment.snapshot_every, reply_large)
        self._turns = DeviceTurns(
            max_batch=deployment.max_batch,
            keep_latents=deployment.recovery == "rebuild",
            copies=self._copies,
            clock=clock,
            receivers=self.receivers,
            reply=reply,
            fail=self._fail,
        )
        self._stop = False
        self._streams = WorkerStreams(
            deployment, devices, self.senders, self.receivers, self._turns.touch
        )
        self._sides = self._streams.sides

    # -- other threads ----------------------------------------------------------------------------

    def post(self, kind: str, what: Any) -> None:
        """Hand something to the loop: ("message", Message), ("chunk", InFlight), ("credits", ...),
        ("linked", (edge, generation, end)), ("lost", (edge, generation, reason)).
        """
        self.inbox.append((kind, what))
        self.wake.ring()

    def deliver(self, chunk: InFlight) -> None:
        """As `post` of a chunk, and compute it here and now where the loop is asleep.

        Only for threads that receive chunks. A turn may wait until a peer has taken credits, and
        the threads that take credits never have the turn, so nobody waits in a circle.
        """
        self.inbox.append(("chunk", chunk))
        if not self._may_deliver or not self._turn.acquire(blocking=False):
            self.wake.ring()
            return
        left_s = 0.0
        try:
            left_s = self._take_turn(alone=False)
        except BaseException as error:  # noqa: BLE001
            # It is the loop's, whose thread ends with it as if the turn had been its own.
            self._error = error
        finally:
            self._turn.release()
        # Also for what came while the turn was taken, and rang, or did not.
        if self.inbox or left_s < math.inf:
            self.wake.ring()

    # -- the loop ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a `stop` message."""
        sleep_precisely()
        while not self._stop:
            with self._turn:
                if self._error is not None:
                    raise self._error
                left_s = self._take_turn(alone=True)
            if left_s > 0.0 and not self._stop:
                self.wake.wait(left_s)

    def _take_turn(self, *, alone: bool) -> float:
        """Return in how many seconds the next one is due, if nothing comes in.

        Args:
            alone: False where the thread has other things to do: it computes one batch at most.
        """
        inbox = self.inbox
        turns = self._turns
        dirty = turns.dirty
        clock = self._clock.now_s
        for _ in range(_MESSAGES_A_TURN):
            if not inbox:
                break
            self._take(*inbox.popleft())
        now_s = clock()
        if turns.launched:
            turns.poll(now_s)
        turns.fire(now_s)
        while dirty:
            device = dirty.pop()
            device.dirty = False
            if not device.running:
                before = device.batches
                turns.start(device, clock())
                if not alone and device.batches > before:
                    turns.settle(clock())
                    break
            if inbox:
                # News may make the next choice a better one, and a stop must not wait.
                break
        for receiver in self.receivers.values():
            receiver.flush()
        if inbox or dirty or self._stop:
            return 0.0
        if turns.launched:
            # Nobody rings when a GPU is done.
            return _POLL_S
        if not turns.timers:
            return math.inf
        return max(0.0, turns.timers[0][0] - clock() - _SPIN_S)

    def close(self) -> None:
        """After `run`: tell the peers that nothing more comes."""
        if self._copies is not None:
            self._copies.close()
        for sender in self.senders.values():
            sender.close()
        for receiver in self.receivers.values():
            receiver.close()

    # -- news -------------------------------------------------------------------------------------

    def _take(self, kind: str, what: Any) -> None:
        if kind == "message":
            self._obey(what)
        elif kind == "chunk":
            self._arrive(what)
        elif kind == "credits":
            self._take_credits(what)
        elif kind == "linked":
            self._take_link(*what)
        else:
            assert kind == "lost", kind
            edge, generation, reason = what
            fields = {"edge": list(edge), "generation": generation, "reason": reason}
            self._reply(Message("edge_lost", fields))

    def _take_link(
        self, edge: tuple[int, int], generation: int, end: LinkSender | LinkReceiver
    ) -> None:
        """An edge was made anew. Streams that cross it stand still until the front resumes them."""
        if generation <= self._link_generation.get(edge, 0):
            end.close()
            return
        self._link_generation[edge] = generation
        self.put_link(edge, end)
        self._reply(Message("linked", {"edge": list(edge), "generation": generation}))

    def put_link(self, edge: tuple[int, int], end: LinkSender | LinkReceiver) -> None:
        """In the loop's thread, or before it runs."""
        if edge[0] in self.devices:
            self.senders[edge] = end  # type: ignore[assignment]
        else:
            self.receivers[edge] = end  # type: ignore[assignment]

    def _arrive(self, chunk: InFlight) -> None:
        side = self._sides.get(chunk.stream)
        if side is not None and chunk.epoch > side.epoch:
            # The restart overtook its own message on the way through the pipeline.
            self._streams.restart(side, chunk.epoch)
        if side is None or chunk.epoch < side.epoch:
            self.late_dropped += 1
            return
        self._turns.enqueue(chunk, side.slots[chunk.stage], self._clock.now_s())

    def _take_credits(self, credits: Sequence[Credit]) -> None:
        now_s = self._clock.now_s()
        for stream, epoch, stage in credits:
            side = self._sides.get(stream)
            if side is None or side.epoch != epoch:
                continue
            slot = side.slots[stage - 1]
            slot.credits += 1
            slot.credited_s = now_s
            self._turns.touch(slot.device)

    def _obey(self, message: Message) -> None:
        fields = message.fields
        if message.kind == "release":
            self._release(fields, message.arrays)
        elif message.kind == "observe":
            side = self._sides.get(fields["stream"])
            if side is not None and side.epoch == fields["epoch"]:
                side.newest, side.newest_number = message.arrays, fields["number"]
        elif message.kind == "open":
            self._answer(fields, lambda: self._streams.open(fields))
        elif message.kind == "condition":
            self._answer(fields, lambda: self._streams.set_condition(fields))
        elif message.kind == "restart":
            self._answer(fields, lambda: self._streams.restart_by_message(fields))
        elif message.kind == "resume":
            self._answer(fields, lambda: self._streams.resume(fields))
        elif message.kind == "restore":
            self._answer(fields, lambda: self._streams.restore(fields, message.arrays))
        elif message.kind == "past":
            self._answer(fields, lambda: self._streams.take_past(fields, message.arrays))
        elif message.kind == "close":
            self._answer(fields, lambda: self._streams.close(fields["stream"]))
        elif message.kind == "stats":
            self._reply(self._stats(fields))
        elif message.kind == "clock":
            self._clock.shift(fields["shift_s"])
        elif message.kind == "overload":
            self._turns.small_batches = fields["low_priority_max_batch"]
        elif message.kind == "stall":
            self._turns.stalled[fields["device"]] = self._clock.now_s() + fields["seconds"]
        else:
            assert message.kind == "stop", message.kind
            self._stop = True

    def _answer(self, fields: dict[str, Any], act: Callable[[], None]) -> None:
        reason = ""
        try:
            act()
        except Exception as error:  # noqa: BLE001
            # Whatever one stream's wishes make a model raise refuses that wish, and stops nobody.
            reason = _reason(error)
        self._reply(Message("done", {"request": fields["request"], "reason": reason}))

    def _release(self, fields: dict[str, Any], observation: Any) -> None:
        side = self._sides.get(fields["stream"])
        if side is None or side.epoch != fields["epoch"]:
            self.late_dropped += 1
            return
        now_s = self._clock.now_s()
        slot = side.slots[0]
        chunk = InFlight(
            stream=side.handle,
            epoch=side.epoch,
            seq=fields["seq"],
            stage=0,
            block=0,
            step=0,
            deadline_s=fields["deadline_s"],
            ready_s=now_s,
            priority=side.priority,
            chunk_id=fields["chunk"],
            seed=side.seed,
            version=fields["version"],
            release_s=fields["release_s"],
            entry_s=fields["entry_s"],
            touches=(fields["number"],),
            observation=observation,
            sent_s=fields["sent_s"],
        )
        self._turns.enqueue(chunk, slot, now_s)

    def _fail(self, side: StreamSide, error: Exception) -> None:
        if self._sides.get(side.handle) is not side:
            return
        self._streams.close(side.handle)
        fields = {"stream": side.handle, "epoch": side.epoch, "reason": _reason(error)}
        self._reply(Message("failed", fields))

    def _stats(self, fields: dict[str, Any]) -> Message:
        sides = self._sides.values()
        answer: dict[str, Any] = {
            "request": fields["request"],
            "asked_s": fields["asked_s"],
            "now_s": self._clock.now_s(),
            "queues": queue_lengths(sides),
            "late_dropped": self.late_dropped,
        }
        arrays: dict[str, Array] = {}
        if fields.get("full"):
            lost, arrays = recorded(self._turns.log)
            answer.update(lost)
            answer["edges"] = [edge_counters(e, s, sides) for e, s in self.senders.items()]
            answer["places_taken"] = places_taken(sides, self.deployment.credits)
            answer["snapshots"] = {} if self._copies is None else self._copies.counters()
            answer["devices"] = [device_counters(d, sides) for d in self.devices.values()]
        return Message("stats", answer, arrays)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
