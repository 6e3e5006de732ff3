"""What one stream's way back after a loss took."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
