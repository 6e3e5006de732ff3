"""Decides by epoch and id which chunks are new, and which are old, repeated or out of order."""

from __future__ import annotations

from collections import deque

from physis_ros.timeline.timed_chunk import ChunkRefusal, RefusedChunk

_REMEMBERED_IDS = 256


class ChunkOrder:
    """Also counts chunks that are later refused for other reasons."""

    def __init__(self) -> None:
        self.gaps = 0
        self._epoch: int | None = None
        self._highest_id = -1
        self._seen: deque[int] = deque(maxlen=_REMEMBERED_IDS)

    @property
    def epoch(self) -> int:
        """Of the newest chunk; 0 before the first."""
        return 0 if self._epoch is None else self._epoch

    def forget_epoch(self) -> None:
        """The only publisher of chunks is gone: the next one may begin with any epoch."""
        self._epoch = None
        self._highest_id = -1
        self._seen.clear()

    def check(self, epoch: int, chunk_id: int) -> RefusedChunk | None:
        """None if the chunk is the newest. Updates `gaps`, the ids that never came."""
        if self._epoch is not None and epoch < self._epoch:
            return RefusedChunk(
                why=ChunkRefusal.OLD_EPOCH,
                detail=f"epoch {epoch}, the present one is {self._epoch}",
            )
        if epoch != self._epoch:
            self.forget_epoch()
            self._epoch = epoch
        if chunk_id in self._seen:
            return RefusedChunk(why=ChunkRefusal.REPEATED, detail=f"chunk {chunk_id}")
        first = self._highest_id < 0
        self._seen.append(chunk_id)
        if chunk_id < self._highest_id:
            self.gaps = max(0, self.gaps - 1)
            return RefusedChunk(
                why=ChunkRefusal.REORDERED,
                detail=f"chunk {chunk_id} after chunk {self._highest_id}",
            )
        if not first:
            self.gaps += chunk_id - self._highest_id - 1
        self._highest_id = chunk_id
        return None
