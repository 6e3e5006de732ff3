"""What the simulator remembers of streams and edges while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from physis_core.deployment.topology import LinkSpec
from physis_core.pipeline.injector import SkipRelease
from physis_core.pipeline.pacer import Pacer
from physis_core.sim.scenario import SimStream


@dataclass(slots=True, eq=False)
class ChunkTrace:
    """One chunk's times in seconds of simulated time; `exit_s` is NaN while it is in flight."""

    chunk_id: int
    release_s: float
    entry_s: float
    capture_s: float
    deadline_s: float
    exit_s: float = math.nan
    deliver_s: float = math.nan


class StreamTrace:
    """Chunks of one stream in order of release, and what was dropped, by reason."""

    __slots__ = ("_open", "chunks", "dropped", "handle", "pacer", "spec")

    def __init__(self, spec: SimStream, handle: int, pacer: Pacer) -> None:
        self.spec = spec
        self.handle = handle
        self.pacer = pacer
        self.chunks: list[ChunkTrace] = []
        self.dropped: dict[str, int] = {}
        self._open: dict[int, ChunkTrace] = {}

    def released(self, chunk: ChunkTrace) -> None:
        self.chunks.append(chunk)
        self._open[chunk.chunk_id] = chunk

    def finished(self, chunk_id: int, exit_s: float, deliver_s: float) -> ChunkTrace:
        chunk = self._open.pop(chunk_id)
        chunk.exit_s = exit_s
        chunk.deliver_s = deliver_s
        return chunk

    def skipped(self, step: SkipRelease) -> None:
        self.dropped[step.reason] = self.dropped.get(step.reason, 0) + step.count


class EdgeTrace:
    """One directed edge between two devices. Messages share its bandwidth one after the other."""

    __slots__ = (
        "bytes",
        "free_s",
        "link",
        "messages",
        "source",
        "start_s",
        "target",
        "wait_s",
        "worst_wait_s",
    )

    def __init__(self, source: int, target: int, link: LinkSpec) -> None:
        self.source = source
        self.target = target
        self.link = link
        self.free_s = 0.0
        self.start_s = 0.0
        """When the newest message began to leave."""
        self.messages = 0
        self.bytes = 0.0
        self.wait_s = 0.0
        self.worst_wait_s = 0.0

    def send(self, now_s: float, size_bytes: float) -> float:
        """Take a message at `now_s`; returns when it arrives."""
        start_s = now_s if now_s > self.free_s else self.free_s
        self.start_s = start_s
        self.free_s = start_s + size_bytes / self.link.bandwidth_bytes_s
        wait_s = start_s - now_s
        self.messages += 1
        self.bytes += size_bytes
        self.wait_s += wait_s
        if wait_s > self.worst_wait_s:
            self.worst_wait_s = wait_s
        return self.free_s + self.link.latency_s
