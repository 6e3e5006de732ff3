"""The event loop of one worker. A turn: take what came in, schedule, run, send.

Other threads (control channel, links) append to `inbox` and wake the loop. One exception: a thread
that received a chunk while the loop sleeps takes one turn itself, under the loop's lock
(docs/decisions/who-takes-the-turn.md).
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

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
    Stop,
    StreamFailed,
    ToEngine,
    ToWorker,
)
from physis_core.cluster.threads import Wake, described, sleep_precisely
from physis_core.deployment.deployment import Deployment
from physis_core.pipeline.pipeline import Pipeline
from physis_core.pipeline.stages import InFlight
from physis_core.types import UserError
from physis_core.worker.batches import Batches
from physis_core.worker.executors import CpuExecutor, LocalDevice
from physis_core.worker.links.link import Credit, LinkReceiver, LinkSender
from physis_core.worker.links.table import LinkTable
from physis_core.worker.report import stats_of
from physis_core.worker.snapshot_copies import SnapshotCopies
from physis_core.worker.streams import WorkerStreams

_SPIN_S = 25e-6
"""Closer than this to an event the loop looks again and again: going to sleep takes longer."""

_EVENTS_A_TURN = 64


class WorkerFault(Exception):
    """A thread of this worker ended by an error, so the worker must end, too."""


class WorkerLoop:
    """Args:
    devices: by index, only this worker's.
    reply: called in the loop's thread with what the engine should know.
    reply_large: as `reply`, from another thread and with much in it.
    clock: gives the engine's time.
    """

    def run(self) -> None:
        """Turn until a `Stop`. Raises WorkerFault where another thread of the worker failed."""
        sleep_precisely()
        while not self._stop:
            with self._lock:
                idle_s = self._turn()
            if idle_s > 0.0:
                self.wake.wait(idle_s)

    def _turn(self, *, one_batch: bool = False) -> float:
        """One turn. Returns for how many seconds there is nothing to do if nothing comes in."""
        if self._fault:
            raise WorkerFault(self._fault)
        self._receive()
        self._batches.collect(self._clock.now_s())
        while (device := self._pipeline.next_device()) is not None:
            batch = self._batches.schedule(device)
            if batch is not None:
                self._batches.run(device, batch)
                if one_batch:
                    self._pipeline.settle(self._clock.now_s())
                    break
            if self.inbox:
                # What came in may make the next choice a better one, and a stop must not wait.
                break
        self.links.flush()
        if self.inbox or self._pipeline.dirty or self._stop:
            return 0.0
        return max(0.0, self._batches.next_look_s - self._clock.now_s() - _SPIN_S)

    def __init__(
        self,
        deployment: Deployment,
        devices: dict[int, LocalDevice],
        *,
        reply: Callable[[ToEngine], object],
        reply_large: Callable[[ToEngine], object],
        clock: HostClock,
    ) -> None:
        self.inbox: deque[tuple[str, Any]] = deque()
        self.wake = Wake()
        self.late_dropped = 0
        self._seen_lock = threading.Lock()
        self._seen: dict[int, Observe] = {}
        """Stream -> its newest observation that the loop has not taken yet."""
        self._lock = threading.Lock()
        """Who holds it owns all that follows."""
        self._fault = ""
        # A second thread that computes would bring its own team of threads; and batches that end
        # later leave timers, which the loop's thread must know of.
        self._may_deliver = deployment.threads == 1 and all(
            type(device.executor) is CpuExecutor for device in devices.values()
        )
        self._clock = clock
        self._devices = devices
        self._reply = reply
        self._stop = False
        self._pipeline = Pipeline(
            {index: device.state for index, device in devices.items()},
            credits=deployment.credits,
            max_batch=deployment.max_batch,
        )
        self.links = LinkTable(self._pipeline, devices)
        models = {
            index: device.executor.models
            for index, device in devices.items()
            if device.executor.models is not None
        }
        self._streams = WorkerStreams(deployment, self._pipeline, models)
        self._copies: SnapshotCopies | None = None
        if deployment.recovery == "snapshot":
            self._copies = SnapshotCopies(deployment.snapshot_every, reply_large, self.fail)
        self._batches = Batches(
            self._pipeline,
            devices,
            self._streams,
            self.links,
            keep_latents=deployment.recovery == "rebuild",
            copies=self._copies,
            clock=clock,
            reply=reply,
            fail=self._fail_stream,
        )

    # -- other threads ----------------------------------------------------------------------------

    def post(self, kind: str, what: Any) -> None:
        """Hand something to the loop: ("message", ToWorker), ("chunk", InFlight), ("credits", ...),
        ("linked", (edge, generation, end)), ("lost", (edge, generation, reason)).

        Observations go by `post_observation`.
        """
        self.inbox.append((kind, what))
        self.wake.ring()

    def post_observation(self, message: Observe) -> None:
        """As `post`; it takes the place of an older one of its stream."""
        with self._seen_lock:
            waits = message.stream in self._seen
            self._seen[message.stream] = message
        if not waits:
            self.post("observed", message.stream)

    def deliver(self, chunk: InFlight) -> None:
        """As `post` of a chunk, and compute it in this thread if the loop sleeps.

        Only for threads that receive chunks. A turn may wait until a peer has taken credits, and
        the threads that take credits never take a turn, so no two workers wait for each other.
        """
        self.inbox.append(("chunk", chunk))
        if not self._may_deliver or not self._lock.acquire(blocking=False):
            self.wake.ring()
            return
        try:
            idle_s = self._turn(one_batch=True)
        finally:
            self._lock.release()
        # Also for what came in during the turn.
        if self.inbox or idle_s < math.inf:
            self.wake.ring()

    def fail(self, reason: str) -> None:
        """A thread of this worker ended by an error: the loop ends with that reason."""
        self._fault = self._fault or reason
        self.wake.ring()

    # -- what came in -----------------------------------------------------------------------------

    def _receive(self) -> None:
        for _ in range(_EVENTS_A_TURN):
            if not self.inbox:
                return
            kind, what = self.inbox.popleft()
            if kind == "chunk":
                self._take_chunk(what)
            elif kind == "credits":
                self._take_credits(what)
            elif kind == "message":
                self._obey(what)
            elif kind == "linked":
                self._take_link(*what)
            elif kind == "observed":
                self._observe(what)
            else:
                assert kind == "lost", kind
                edge, generation, reason = what
                self._reply(EdgeLost(edge=edge, generation=generation, reason=reason))

    def _take_chunk(self, chunk: InFlight) -> None:
        # A restart may be overtaken by the first chunk of its epoch.
        self._streams.restart_if_older(chunk.stream, chunk.epoch)
        if not self._pipeline.arrive(chunk, self._clock.now_s()):
            self.late_dropped += 1

    def _observe(self, handle: int) -> None:
        with self._seen_lock:
            message = self._seen.pop(handle)
        # It may have overtaken the restart of its epoch.
        self._streams.restart_if_older(handle, message.epoch)
        self._streams.observe(message)

    def _take_credits(self, credits: Sequence[Credit]) -> None:
        now_s = self._clock.now_s()
        for stream, epoch, stage in credits:
            self._pipeline.take_credit(stream, epoch, stage, now_s)

    def _take_link(
        self, edge: tuple[int, int], generation: int, end: LinkSender | LinkReceiver
    ) -> None:
        """An edge was made anew. Streams that cross it stand still until the engine resumes
        them.
        """
        if self.links.put(edge, end, generation):
            self._reply(Linked(edge=edge, generation=generation))

    def _obey(self, message: ToWorker) -> None:
        streams = self._streams
        match message:
            case Release():
                self._release(message)
            case SetCondition():
                self._answer(message, lambda: streams.set_condition(message))
            case OpenStream():
                self._answer(message, lambda: streams.open(message.opening))
            case RestartStream():
                self._answer(message, lambda: streams.restart(message))
            case CloseStream():
                self._answer(message, lambda: streams.close(message.stream))
            case GetStats():
                self._reply(
                    stats_of(
                        message,
                        self._clock.now_s(),
                        self._pipeline,
                        self._devices,
                        self._streams.tensors,
                        self.links,
                        self._batches.log,
                        self._copies,
                        self.late_dropped,
                    )
                )
            case SetOverload():
                self._pipeline.low_priority_max_batch = message.low_priority_max_batch
            case ShiftClock():
                self._clock.shift(message.shift_s)
            case ResumeStream():
                self._answer(message, lambda: streams.resume(message.opening))
            case RestoreWindow():
                self._answer(message, lambda: streams.restore(message))
            case GivePast():
                self._answer(message, lambda: streams.take_past(message))
            case StallDevice():
                device = self._pipeline.devices[message.device]
                device.stalled_until_s = self._clock.now_s() + message.seconds
            case Stop():
                self._stop = True
            case Relink() | Ping() | Observe():
                raise AssertionError(f"{type(message).__name__} is not for the loop")

    def _answer(self, request: Request, act: Callable[[], None]) -> None:
        reason = ""
        try:
            act()
        except Exception as error:  # noqa: BLE001
            # Whatever a model raises about one stream's request refuses that request alone.
            reason = _reason(error)
        self._reply(Done(request=request.request, reason=reason))

    def _release(self, message: Release) -> None:
        stream = self._pipeline.streams.get(message.stream)
        if stream is None or stream.epoch != message.epoch:
            self.late_dropped += 1
            return
        chunk = InFlight(
            stream=stream.handle,
            epoch=stream.epoch,
            seq=message.seq,
            stage=0,
            block=0,
            step=0,
            deadline_s=message.deadline_s,
            ready_s=0.0,
            priority=stream.priority,
            chunk_id=message.chunk,
            seed=self._streams.tensors[stream.handle].seed,
            version=message.version,
            model=stream.layout.model,
            release_s=message.release_s,
            entry_s=message.entry_s,
            touches=(message.number,),
            observation=message.observation,
            sent_s=message.sent_s,
        )
        self._pipeline.enter(chunk, self._clock.now_s())

    def _fail_stream(self, handle: int, error: Exception) -> None:
        stream = self._pipeline.streams.get(handle)
        if stream is not None:
            self._streams.close(handle)
            self._reply(StreamFailed(stream=handle, epoch=stream.epoch, reason=_reason(error)))

    # -- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """After `run`: tell the peers that nothing more comes."""
        if self._copies is not None:
            self._copies.close()
        self.links.close()


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UserError) else described(error)
