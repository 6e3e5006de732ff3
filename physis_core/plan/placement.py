"""Where virtual ranks go: two resources, Best-Fit, and a search that may deviate from it a few
times.

Best-Fit takes the fullest device that still fits; where a rank is stuck, Limited Discrepancy Search
tries the assignments that deviate from Best-Fit once, then twice. Neighbours prefer fast links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from physis_core.plan.pool_state import EPS, After, Fit, PoolState, RankDemand, Shortage

__all__ = ["Fit", "Placement", "RankDemand", "Shortage"]


@dataclass(slots=True)
class _Search:
    """Budget of one search, and the deepest point at which it failed."""

    nodes_left: int
    deepest: int = -1
    placed: list[int] = field(default_factory=list)


class Placement(PoolState):
    """A pool's state with a search. Streams come whole and leave whole; nobody moves."""

    def find(
        self,
        demands: Sequence[RankDemand],
        *,
        discrepancies: int = 2,
        nodes: int = 400,
    ) -> tuple[int, ...] | Shortage:
        """A device for every rank of a stream, or what is missing. The state is left as it was."""
        short = self._short_as_a_whole(demands)
        if short is not None:
            return short
        search = _Search(nodes_left=nodes)
        for allowed in range(discrepancies + 1):
            found = self._extend(demands, (), allowed, search)
            if found is not None:
                return found
            if search.nodes_left <= 0:
                break
        return self._shortage(demands, search)

    def _short_as_a_whole(self, demands: Sequence[RankDemand]) -> Shortage | None:
        """What the whole pool lacks even if nothing of it were stranded; no search then."""
        limit = self.pool.memory_bytes
        free = np.maximum(0.0, limit - self.memory_used())
        missing = sum(demand.bytes for demand in demands) - float(free.sum())
        if missing <= 0.0:
            return None
        return Shortage(
            resource="memory",
            device=int(np.argmax(free)),
            rank=-1,
            missing=missing,
            missing_share=missing / limit,
        )

    def _extend(
        self,
        demands: Sequence[RankDemand],
        chosen: tuple[int, ...],
        allowed: int,
        search: _Search,
    ) -> tuple[int, ...] | None:
        rank = len(chosen)
        if rank == len(demands):
            return chosen
        if search.nodes_left <= 0:
            return None
        search.nodes_left -= 1
        if rank > search.deepest:
            search.deepest, search.placed = rank, list(chosen)
        demand = demands[rank]
        after = self.after(demand, chosen)
        for deviation, device in enumerate(self._candidates(after, chosen)):
            if deviation > allowed:
                break
            newcomer = device not in chosen
            undo = self.lay(demand, device, after, newcomer)
            try:
                found = self._extend(demands, (*chosen, device), allowed - deviation, search)
            finally:
                self.lift(demand, device, undo, newcomer)
            if found is not None:
                return found
        return None

    def _candidates(self, after: After, chosen: tuple[int, ...]) -> Iterator[int]:
        """Devices that can take this rank, best first; of several alike only one per host."""
        memory, load = after.memory, after.load
        limit = self.pool.memory_bytes
        fits = (memory <= limit * (1 + EPS)) & (load <= (1.0 - self.margin) * (1 + EPS))
        if not fits.any():
            return
        now_memory, now_load = self.memory_used(), self.load()
        grown = (memory - now_memory) / limit + (load - now_load)
        room = (limit - now_memory) / limit + (1.0 - now_load)
        # The fuller device, and the one on which this rank costs least (weights there, batches
        # form).
        # Spread: the cost comes first, so that weights stand once and every stream uses them.
        best = self.fit == "best"
        score = room + 2.0 * grown if best else 2.0 * grown - 0.02 * room
        if chosen:
            near = self.hosts == self.hosts[chosen[-1]]
            score = score + np.where(near, 0.0, 0.5 if best else 0.01)
            if best:
                score = score - np.where(np.arange(len(score)) == chosen[-1], 0.02, 0.0)
        order = np.argsort(score, kind="stable")
        seen: set[tuple[float, float, int]] = set()
        for device in order:
            if not fits[device]:
                continue
            like = (float(score[device]), float(room[device]), int(self.hosts[device]))
            if like in seen and int(device) not in chosen:
                continue
            seen.add(like)
            yield int(device)

    def _shortage(self, demands: Sequence[RankDemand], search: _Search) -> Shortage:
        """What keeps the rank at which the search got stuck from the device that misses least."""
        rank = max(0, search.deepest)
        for demand, device in zip(demands, search.placed):
            self.put(demand, device, 1)
        try:
            after = self.after(demands[rank], search.placed)
        finally:
            for demand, device in zip(demands, search.placed):
                self.put(demand, device, -1)
        limit, memory, load = self.pool.memory_bytes, after.memory, after.load
        over_memory = np.maximum(0.0, memory / limit - 1.0)
        over_time = np.maximum(0.0, load / (1.0 - self.margin) - 1.0)
        device = int(np.argmin(np.maximum(over_memory, over_time)))
        if over_memory[device] >= over_time[device]:
            return Shortage(
                resource="memory",
                device=device,
                rank=rank,
                missing=float(memory[device] - limit),
                missing_share=float(over_memory[device]),
            )
        return Shortage(
            resource="time",
            device=device,
            rank=rank,
            missing=float(load[device] - (1.0 - self.margin)),
            missing_share=float(over_time[device]),
        )
