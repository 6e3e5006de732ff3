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

from msgspec import structs

from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import (
    CloseStream,
    Done,
    EdgeLost,
    GetStats,
    GivePast,
    Linked,
    Observe,
    OpenStream,
    Ping,
    Release,
    Relink,
    Request,
    RestartStream,
    RestoreWindow,
    ResumeStream,
    SetCondition,
    SetOverload,
    ShiftClock,
    StallDevice,
    Stats,
    Stop,
    StreamFailed,
    ToEngine,
    ToWorker,
)
from physis_core.cluster.threads import Wake, described, sleep_precisely
from physis_core.deployment.deployment import Deployment
from physis_core.types import UserError
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
from physis_core.worker.stages import StreamSide
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
        reply: Callable[[ToEngine], object],
        reply_large: Callable[[ToEngine], object],
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
        """Hand something to the loop: ("message", ToWorker), ("chunk", InFlight), ("credits", ...),
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
            self._reply(EdgeLost(edge=edge, generation=generation, reason=reason))

    def _take_link(
        self, edge: tuple[int, int], generation: int, end: LinkSender | LinkReceiver
    ) -> None:
        """An edge was made anew. Streams that cross it stand still until the front resumes them."""
        if generation <= self._link_generation.get(edge, 0):
            end.close()
            return
        self._link_generation[edge] = generation
        self.put_link(edge, end)
        self._reply(Linked(edge=edge, generation=generation))

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

    def _obey(self, message: ToWorker) -> None:
        streams = self._streams
        match message:
            case Release():
                self._release(message)
            case Observe():
                side = self._sides.get(message.stream)
                if side is not None and side.epoch == message.epoch:
                    side.newest, side.newest_number = message.observation, message.number
            case SetCondition():
                self._answer(message, lambda: streams.set_condition(message))
            case OpenStream():
                self._answer(message, lambda: streams.open(message.opening))
            case RestartStream():
                self._answer(message, lambda: streams.restart_by_message(message))
            case CloseStream():
                self._answer(message, lambda: streams.close(message.stream))
            case GetStats():
                self._reply(self._stats(message))
            case SetOverload():
                self._turns.small_batches = message.low_priority_max_batch
            case ShiftClock():
                self._clock.shift(message.shift_s)
            case ResumeStream():
                self._answer(message, lambda: streams.resume(message.opening))
            case RestoreWindow():
                self._answer(message, lambda: streams.restore(message))
            case GivePast():
                self._answer(message, lambda: streams.take_past(message))
            case StallDevice():
                self._turns.stalled[message.device] = self._clock.now_s() + message.seconds
            case Stop():
                self._stop = True
            case Relink() | Ping():
                raise AssertionError(f"{type(message).__name__} is not for the loop")

    def _answer(self, request: Request, act: Callable[[], None]) -> None:
        reason = ""
        try:
            act()
        except Exception as error:  # noqa: BLE001
            # Whatever one stream's wishes make a model raise refuses that wish, and stops nobody.
            reason = _reason(error)
        self._reply(Done(request=request.request, reason=reason))

    def _release(self, message: Release) -> None:
        side = self._sides.get(message.stream)
        if side is None or side.epoch != message.epoch:
            self.late_dropped += 1
            return
        now_s = self._clock.now_s()
        slot = side.slots[0]
        chunk = InFlight(
            stream=side.handle,
            epoch=side.epoch,
            seq=message.seq,
            stage=0,
            block=0,
            step=0,
            deadline_s=message.deadline_s,
            ready_s=now_s,
            priority=side.priority,
            chunk_id=message.chunk,
            seed=side.seed,
            version=message.version,
            release_s=message.release_s,
            entry_s=message.entry_s,
            touches=(message.number,),
            observation=message.observation,
            sent_s=message.sent_s,
        )
        self._turns.enqueue(chunk, slot, now_s)

    def _fail(self, side: StreamSide, error: Exception) -> None:
        if self._sides.get(side.handle) is not side:
            return
        self._streams.close(side.handle)
        self._reply(StreamFailed(stream=side.handle, epoch=side.epoch, reason=_reason(error)))

    def _stats(self, question: GetStats) -> Stats:
        sides = self._sides.values()
        brief = Stats(
            request=question.request,
            asked_s=question.asked_s,
            now_s=self._clock.now_s(),
            queues=queue_lengths(sides),
            late_dropped=self.late_dropped,
        )
        if not question.full:
            return brief
        records, lost = recorded(self._turns.log)
        return structs.replace(
            brief,
            records=records,
            records_lost=lost,
            places_taken=places_taken(sides, self.deployment.credits),
            edges=[edge_counters(e, s, sides) for e, s in self.senders.items()],
            devices=[device_counters(d, sides) for d in self.devices.values()],
            snapshots={} if self._copies is None else self._copies.counters(),
        )


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else described(error)
