"""The messages between the engine and its workers, one type each.

Each is a tagged struct: a receiver names the union that it takes (`ToWorker`, `ToEngine`) and a
message of another kind, with another field or with a value of another type does not decode.
`transport` carries them; named arrays travel beside the message as raw bytes.

Stream numbers (`stream`) are the engine's own, epochs and chunk ids as in `physis_core.types`;
seconds are of the engine's steady clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from physis_core.types import Array, Refresh

Count = Annotated[int, Meta(ge=0)]
Edge = tuple[Count, Count]
"""(source device, destination device)."""
Arrays = Mapping[str, Array]


class Message(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    eq=False,
    tag_field="kind",
    tag=str.lower,
):
    """What all messages share. Never changed after it was made."""


class Request(Message, frozen=True, kw_only=True):
    """Answered by one `Done` with this number, or by `Stats`. The worker group numbers them."""

    request: Count = 0


# Engine to worker ------------------------------------------------------------------------------


class Release(Message, frozen=True, kw_only=True):
    """Chunk `chunk` enters, with observation `number`. Below 0: a past chunk runs again."""

    stream: Count
    epoch: Count
    seq: Count
    chunk: int
    version: Count
    number: Count
    deadline_s: float
    release_s: float
    entry_s: float
    sent_s: float
    observation: Arrays = field(default_factory=dict)


class Observe(Message, frozen=True, kw_only=True):
    """The newest observation, for later denoising steps of chunks that are under way."""

    stream: Count
    epoch: Count
    number: Count
    observation: Arrays


class Opening(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, eq=False):
    """What a worker must know of a stream to run it.

    `conditions`: (version, condition) of each that may be in use. `block_s`: seconds of one task of
    each block.
    """

    stream: Count
    route: Count
    epoch: Count
    seed: Count
    refresh: Refresh
    priority: int
    conditions: Sequence[tuple[Count, dict[str, Any]]]
    block_s: Sequence[float]


class OpenStream(Request, frozen=True, kw_only=True):
    opening: Opening


class ResumeStream(Request, frozen=True, kw_only=True):
    """Stand ready, empty, for a new epoch after a loss, over the links of now."""

    opening: Opening


class RestoreWindow(Request, frozen=True, kw_only=True):
    """Give a stage back its KV, as it was after some chunk."""

    stream: Count
    epoch: Count
    stage: Count
    saved: Arrays


class GivePast(Request, frozen=True, kw_only=True):
    """The clean latent of past chunk `chunk` (below 0), which will run again."""

    stream: Count
    epoch: Count
    chunk: int
    latent: Arrays


class SetCondition(Request, frozen=True, kw_only=True):
    """Chunks with `version` run under `condition`; versions before `oldest_in_use` may go."""

    stream: Count
    version: Count
    condition: dict[str, Any]
    oldest_in_use: Count


class RestartStream(Request, frozen=True, kw_only=True):
    """Drop what belongs to an older epoch of the stream."""

    stream: Count
    epoch: Count


class CloseStream(Request, frozen=True, kw_only=True):
    stream: Count


class GetStats(Request, frozen=True, kw_only=True):
    """`full`: with the task records since the last full report, and all counters."""

    full: bool
    asked_s: float


class SetOverload(Message, frozen=True, kw_only=True):
    """The largest batch of low priority from now on; None: as usual."""

    low_priority_max_batch: int | None


class StallDevice(Message, frozen=True, kw_only=True):
    """Fault injection: the device starts nothing for a while."""

    device: Count
    seconds: float


class Relink(Message, frozen=True, kw_only=True):
    """Make this end of a lost edge anew."""

    edge: Edge
    generation: Count


class Ping(Message, frozen=True, kw_only=True):
    """What time is it? The answer comes at once, whatever the worker computes."""


class ShiftClock(Message, frozen=True, kw_only=True):
    """The worker's clock is ahead of the engine's by `shift_s`."""

    shift_s: float


class Stop(Message, frozen=True, kw_only=True):
    """End the loop."""


ToWorker = (
    Release
    | Observe
    | SetCondition
    | OpenStream
    | RestartStream
    | CloseStream
    | GetStats
    | SetOverload
    | ShiftClock
    | ResumeStream
    | RestoreWindow
    | GivePast
    | Relink
    | StallDevice
    | Ping
    | Stop
)


# Worker to engine ------------------------------------------------------------------------------


class ChunkExit(Message, frozen=True, kw_only=True):
    """A chunk is complete. `latent`: its clean latent, where the engine keeps those."""

    stream: Count
    epoch: Count
    seq: Count
    touches: Sequence[Count]
    exit_s: float
    outputs: Arrays
    latent: Arrays = field(default_factory=dict)


class ChunkRetired(Message, frozen=True, kw_only=True):
    """A chunk has left the pipeline."""

    stream: Count
    epoch: Count
    seq: Count


class StreamFailed(Message, frozen=True, kw_only=True):
    """A stream ended by an error of its own."""

    stream: Count
    epoch: Count
    reason: str


class Done(Message, frozen=True, kw_only=True):
    """The answer to a request; `reason` says why it was not done, empty where it was."""

    request: Count
    reason: str


class Stats(Message, frozen=True, kw_only=True):
    """`queues`: waiting chunks by device. What follows `late_dropped` only where asked in full.

    `edges` and `devices`: counters of each, see `RunTrace`. `records`: `tasks` as bytes.
    """

    request: Count
    asked_s: float
    now_s: float
    queues: dict[Count, Count]
    late_dropped: Count
    records: Arrays = field(default_factory=dict)
    records_lost: Count = 0
    places_taken: int = 0
    edges: Sequence[dict[str, int | float]] = ()
    devices: Sequence[dict[str, int | float | None]] = ()
    snapshots: dict[str, int | float] = field(default_factory=dict)


class WindowSaved(Message, frozen=True, kw_only=True):
    """A copy of a stage's KV window after chunk `chunk`."""

    stream: Count
    epoch: Count
    seq: Count
    chunk: int
    stage: Count
    saved: Arrays


class Linked(Message, frozen=True, kw_only=True):
    """This worker's end of an edge was made anew."""

    edge: Edge
    generation: Count


class EdgeLost(Message, frozen=True, kw_only=True):
    edge: Edge
    generation: Count
    reason: str


class Hello(Message, frozen=True, kw_only=True):
    """The first message of a worker process. `incarnation` counts its starts from 0."""

    worker: Count
    pid: Count
    incarnation: Count


class Pong(Message, frozen=True, kw_only=True):
    now_s: float


class Ready(Message, frozen=True, kw_only=True):
    """Warm. `costs`: measured seconds by block and batch size."""

    worker: Count
    pid: Count
    warmup_s: float
    costs: dict[Count, dict[Count, float]]
    incarnation: Count = 0


class Fatal(Message, frozen=True, kw_only=True):
    """The deployment does not fit this worker."""

    field: str
    value: str
    reason: str


class Refusal(Message, frozen=True, kw_only=True):
    """The worker could not read a message of the engine."""

    reason: str


class Stopped(Message, frozen=True, kw_only=True):
    """The worker's loop ended as it was asked to."""


ToEngine = (
    ChunkExit
    | ChunkRetired
    | Stats
    | Done
    | WindowSaved
    | StreamFailed
    | Linked
    | EdgeLost
    | Ready
    | Hello
    | Pong
    | Fatal
    | Refusal
    | Stopped
)


# Made at the engine's side, never sent ---------------------------------------------------------


class WorkerDied(Struct, frozen=True, kw_only=True):
    """A worker is gone, or must be taken for it."""

    incarnation: int
    reason: str


class ClusterFailed(Struct, frozen=True, kw_only=True):
    """What starts and hears the workers has failed: none of them can be relied on any more."""

    reason: str


News = ToEngine | WorkerDied | ClusterFailed
"""What the engine hears of its workers."""
