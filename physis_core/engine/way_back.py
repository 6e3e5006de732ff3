"""What a loss can be made good with, and what one stream's way back took. Plain data.

KV comes back in one of two ways.

A snapshot is one chunk boundary, collected stage by stage. A stage copies its window when it has
done chunk c and before it does c + 1. The wave front does not stop for it: each stage comes to the
boundary in its own time, and the copies of one c belong together whenever they were made. The
engine keeps the newest boundary of which every stage's copy has come. (`worker.snapshot_copies`
makes the copies.)

A rebuild needs only the last clean latents, which leave anyway. After a loss they enter the
pipeline once more, as chunks of the past with ids below 0: they walk every stage, one behind the
other like all chunks, except that each denoising step begins with the kept latent noised to that
step's level (`StagedModel.renoise`) instead of with what the step before predicted. Each stage so
writes the KV that the next chunks read; what comes out at the end is thrown away.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from physis_core.types import Array

_MOST_OPEN = 4
"""Boundaries that are being collected: an older one whose copies still miss will never be whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`windows` by stage index: what `KVWindow.snapshot` gave, as arrays. Empty where devices are
    emulated.

    `chunk_id` is the last chunk in it; `epoch` is that in which it was taken.
    """

    epoch: int
    seq: int
    chunk_id: int
    windows: Mapping[int, Mapping[str, Array]]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for saved in self.windows.values() for array in saved.values())


@dataclass(slots=True)
class _Open:
    chunk_id: int
    windows: dict[int, Mapping[str, Array]] = field(default_factory=dict)


class SnapshotShelf:
    """One stream's snapshots: the newest whole one, and those that are on their way.

    Args:
        stages: all stages that leave KV behind.
    """

    def __init__(self, stages: Iterable[int]) -> None:
        self._stages = frozenset(stages)
        self._open: dict[tuple[int, int], _Open] = {}
        self.newest: Snapshot | None = None

    def collects(self, stage: int) -> bool:
        return stage in self._stages

    def add(
        self, *, epoch: int, seq: int, chunk_id: int, stage: int, saved: Mapping[str, Array]
    ) -> None:
        """A stage's copy came. One of an older boundary than the newest whole one is dropped."""
        assert stage in self._stages, stage
        at = (epoch, seq)
        if self.newest is not None and at <= (self.newest.epoch, self.newest.seq):
            return
        collected = self._open.setdefault(at, _Open(chunk_id))
        collected.windows[stage] = saved
        if len(collected.windows) == len(self._stages):
            self.newest = Snapshot(
                epoch=epoch, seq=seq, chunk_id=chunk_id, windows=collected.windows
            )
            self._open = {k: v for k, v in self._open.items() if k > at}
        while len(self._open) > _MOST_OPEN:
            del self._open[min(self._open)]

    def forget(self) -> None:
        """The stream begins anew: nothing of before may come back."""
        self._open.clear()
        self.newest = None

    def drop_open(self) -> None:
        """After a loss: what has not come by now never will."""
        self._open.clear()


Latent = Mapping[str, Array]
"""Parts of one clean latent by their numbers, [1, ...]."""


class PastChunks:
    """Clean latents of one stream: of its first `sink` chunks, and of the last window - sink.

    Those are the chunks that a full KV window holds, H in all.
    """

    def __init__(self, window: int, sink: int) -> None:
        self._sink = sink
        self._first: list[Latent] = []
        self._last: deque[Latent] = deque(maxlen=window - sink)

    def add(self, latent: Latent) -> None:
        if len(self._first) < self._sink:
            self._first.append(latent)
        else:
            self._last.append(latent)

    def kept(self) -> list[Latent]:
        """Oldest first."""
        return [*self._first, *self._last]

    def forget(self) -> None:
        """The stream begins anew: nothing of before may come back."""
        self._first.clear()
        self._last.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRecord:
    """Seconds of the engine's steady clock.

    `by` is `snapshot` or `rebuild`. `from_chunk` (epoch, chunk id) is the newest chunk that the KV
    knows of: of the snapshot's boundary, or the last one that was run again; None: there was
    nothing, and the KV is empty. `chunks` were run again, `bytes` were sent to the workers.
    `lost_s`: the front heard of it; `whole_s`: workers and edges were back; `ready_s`: so was the
    KV (with `rebuild`: its chunks had been let in); `first_exit_s`: the first chunk of the new
    epoch was complete.
    """

    stream_id: str
    epoch: int
    by: str
    from_chunk: tuple[int, int] | None
    chunks: int
    bytes: int
    lost_s: float
    whole_s: float
    ready_s: float
    first_exit_s: float


@dataclass(slots=True, kw_only=True)
class ComingBack:
    """A record in the making. `attempt` is the suspension's: answers to another one are void."""

    epoch: int
    attempt: int
    lost_s: float
    whole_s: float
    ready_s: float = math.nan
    from_chunk: tuple[int, int] | None = None
    chunks: int = 0
    bytes: int = 0

    def record(self, stream_id: str, by: str, first_exit_s: float) -> RecoveryRecord:
        return RecoveryRecord(
            stream_id=stream_id,
            epoch=self.epoch,
            by=by,
            from_chunk=self.from_chunk,
            chunks=self.chunks,
            bytes=self.bytes,
            lost_s=self.lost_s,
            whole_s=self.whole_s,
            ready_s=self.ready_s,
            first_exit_s=first_exit_s,
        )
