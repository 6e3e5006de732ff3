"""What to start anew after a loss, and when: pure decisions about workers and the edges between
them.

A worker is up, waiting for its next start, starting, or given up. An edge is whole, broken, or
being made anew; each making of it has its own generation, so that news of an older one is known as
such. An edge is made anew once the workers at both of its ends are up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Edge = tuple[int, int]
"""(source device, destination device)."""

FIRST_PAUSE_S = 0.25
"""Before the second start of a worker; doubled for each further one. The first one is immediate."""
EDGE_PAUSE_S = 1.0
"""A lost edge is mostly the first sign of a lost worker: wait for the news of it."""
START_S = 120.0
"""A worker that is not ready after this long is taken for lost."""
STEADY_S = 60.0
"""Whoever was up this long has its failures forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Respawn:
    """Start this worker; `incarnation` counts its starts, the first one of the run being 0."""

    worker: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End this worker's process: its start takes too long."""

    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelinkEdge:
    """Make this edge anew, at both ends."""

    edge: Edge
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """No further attempt. Exactly one of the two is set."""

    worker: int | None = None
    edge: Edge | None = None


Action = Respawn | Kill | RelinkEdge | GiveUp


@dataclass(slots=True)
class _Worker:
    state: Literal["up", "waiting", "starting", "given_up"] = "up"
    incarnation: int = 0
    failures: int = 0
    due_s: float = math.inf
    since_s: float = -math.inf
    losses: int = 0


@dataclass(slots=True)
class _Edge:
    ends: tuple[int, int]
    state: Literal["whole", "broken", "asked", "given_up"] = "whole"
    generation: int = 0
    failures: int = 0
    due_s: float = math.inf
    since_s: float = -math.inf
    losses: int = 0
    linked: set[int] = field(default_factory=set)


class RespawnPlan:
    """Args:
    edges: workers at the source and the target of each edge that crosses processes.
    attempts: starts of one worker, or makings of one edge, in a row before it is given up.
    """

    def __init__(
        self, workers: Iterable[int], edges: Mapping[Edge, tuple[int, int]], attempts: int
    ) -> None:
        self._workers = {worker: _Worker() for worker in workers}
        self._edges = {edge: _Edge(ends) for edge, ends in edges.items()}
        self._attempts = attempts

    def worker_lost(self, worker: int, incarnation: int, now_s: float) -> bool:
        """False where this is no news."""
        own = self._workers[worker]
        if own.incarnation != incarnation or own.state in ("waiting", "given_up"):
            return False
        if own.state == "up" and now_s - own.since_s >= STEADY_S:
            own.failures = 0
        own.state = "waiting"
        own.losses += 1
        pause_s = FIRST_PAUSE_S * 2 ** (own.failures - 1) if own.failures else 0.0
        own.due_s = now_s + pause_s
        own.failures += 1
        for edge in self._edges.values():
            if worker in edge.ends and edge.state != "given_up":
                edge.state, edge.due_s = "broken", now_s
                edge.losses += 1
                # Its other end may have noticed first; the fault was not its own.
                edge.failures = 0
        return True

    def worker_ready(self, worker: int, incarnation: int, now_s: float) -> bool:
        """False where it is one that was given up meanwhile."""
        own = self._workers[worker]
        if own.incarnation != incarnation or own.state != "starting":
            return False
        own.state, own.since_s, own.due_s = "up", now_s, math.inf
        return True

    def edge_lost(self, edge: Edge, generation: int, now_s: float) -> bool:
        """False where this is no news."""
        own = self._edges[edge]
        if own.generation != generation or own.state not in ("whole", "asked"):
            return False
        if own.state == "whole" and now_s - own.since_s >= STEADY_S:
            own.failures = 0
        own.state = "broken"
        own.losses += 1
        own.due_s = now_s + EDGE_PAUSE_S * 2**own.failures
        own.failures += 1
        return True

    def edge_linked(self, edge: Edge, generation: int, worker: int, now_s: float) -> None:
        """One end has it."""
        own = self._edges[edge]
        if own.generation != generation or own.state != "asked":
            return
        own.linked.add(worker)
        if own.linked == set(own.ends):
            own.state, own.since_s = "whole", now_s

    def due(self, now_s: float) -> list[Action]:
        """What is to be done now. Each thing is said once."""
        actions: list[Action] = []
        for worker, own in self._workers.items():
            if own.due_s > now_s:
                continue
            if own.state == "waiting":
                if own.failures > self._attempts:
                    own.state, own.due_s = "given_up", math.inf
                    actions.append(GiveUp(worker=worker))
                    continue
                own.state, own.due_s = "starting", now_s + START_S
                own.incarnation += 1
                actions.append(Respawn(worker=worker, incarnation=own.incarnation))
            elif own.state == "starting":
                own.due_s = math.inf
                actions.append(Kill(worker=worker))
        for edge, line in self._edges.items():
            if line.state != "broken" or line.due_s > now_s:
                continue
            if any(self._workers[end].state != "up" for end in line.ends):
                # What becomes of it is the worker's matter.
                continue
            if line.failures > self._attempts:
                line.state = "given_up"
                actions.append(GiveUp(edge=edge))
            else:
                line.state = "asked"
                line.generation += 1
                line.linked.clear()
                actions.append(RelinkEdge(edge=edge, generation=line.generation))
        return actions

    def next_s(self) -> float:
        """When `due` has something to say if nothing else happens; infinite: never."""
        times = [
            own.due_s for own in self._workers.values() if own.state in ("waiting", "starting")
        ]
        times += [
            line.due_s
            for line in self._edges.values()
            if line.state == "broken" and all(self._workers[end].state == "up" for end in line.ends)
        ]
        return min(times, default=math.inf)

    def incarnation(self, worker: int) -> int:
        return self._workers[worker].incarnation

    def worker_up(self, worker: int) -> bool:
        return self._workers[worker].state == "up"

    def knows(self, edge: Edge) -> bool:
        return edge in self._edges

    def edge_whole(self, edge: Edge) -> bool:
        return self._edges[edge].state == "whole"

    def ends(self, edge: Edge) -> tuple[int, int]:
        """Workers at its source and target."""
        return self._edges[edge].ends

    def given_up(self, workers: Iterable[int], edges: Iterable[Edge]) -> bool:
        """Whether a stream that needs these will never go on."""
        return any(self._workers[w].state == "given_up" for w in workers) or any(
            self._edges[edge].state == "given_up" for edge in edges
        )

    def losses(self, workers: Iterable[int], edges: Iterable[Edge]) -> int:
        """How often any of these was lost until now."""
        return sum(self._workers[w].losses for w in workers) + sum(
            self._edges[edge].losses for edge in edges
        )
