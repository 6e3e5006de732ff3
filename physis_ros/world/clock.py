"""Decides when a world advances and when its frames leave. Pure: the caller gives the time."""

from __future__ import annotations

from dataclasses import dataclass

_LATEST_CHUNKS = 2
"""A free-running world that is further behind skips chunks instead of catching up."""


@dataclass(slots=True, kw_only=True)
class FreeClock:
    """A free-running world: chunk after chunk depicts the next stretch of ROS time.

    `chunk_ns` is what a chunk depicts, `next_ns` the first instant of the next one.
    """

    chunk_ns: int
    next_ns: int
    skipped: int = 0
    """Chunks skipped because the world was behind."""

    def due(self, now_ns: int) -> int | None:
        """The first instant of the chunk that starts now; None: not yet."""
        if now_ns < self.next_ns:
            return None
        behind = (now_ns - self.next_ns) // self.chunk_ns
        if behind >= _LATEST_CHUNKS:
            self.skipped += behind
            self.next_ns += behind * self.chunk_ns
        first_ns = self.next_ns
        self.next_ns += self.chunk_ns
        return first_ns

    def jumped(self, now_ns: int) -> None:
        """ROS time jumped: continue from the new time."""
        self.next_ns = now_ns


@dataclass(slots=True, kw_only=True)
class FrameSpread:
    """Frames of a chunk are finished together, and leave one after the other.

    `gap_s` is a little below the time between frames, so that what waits grows less and less.
    """

    gap_s: float
    last_s: float = float("-inf")

    def may_leave(self, now_s: float) -> bool:
        """Whether one frame may leave at `now_s`; then it counts as gone."""
        if now_s < self.last_s + self.gap_s:
            return False
        late = now_s - (self.last_s + self.gap_s)
        # A frame that leaves a poll late does not put off those behind it.
        self.last_s = now_s if late > self.gap_s else self.last_s + self.gap_s
        return True
