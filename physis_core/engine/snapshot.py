"""KV snapshots at one chunk boundary: collected stage by stage, and given back after a loss.

A stage copies its window when it has done chunk c and before it does c + 1. The wave front does not
stop for it: each stage comes to the boundary in its own time, and the copies of one c belong
together whenever they were made. The front keeps the newest boundary of which every stage's copy
has come. It is plain data here; `snapshot_copies` makes the copies in the worker.
"""

from __future__ import annotations

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
