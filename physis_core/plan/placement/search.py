"""Which device runs each virtual rank: two resources, Best-Fit, and a search that may deviate from
it a few times.

Best-Fit takes the fullest device that still fits; where a rank is stuck, Limited Discrepancy Search
tries the assignments that deviate from Best-Fit once, then twice. Neighbours prefer fast links.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from physis_core.plan.placement.demands import Floats, RankDemand
from physis_core.plan.placement.pool_state import EPS, After, Fit, PoolState, Shortage

__all__ = ["Fit", "Placement", "RankDemand", "Shortage"]


@dataclass(slots=True)
class _Search:
    """Budget of one search, and the deepest point at which it failed.

    `known`: what devices would hold and which of them to try, by the devices of the previous ranks.
    Every round of the search passes the same points again, so it is kept.
    """

    nodes_left: int
    deepest: int = -1
    placed: tuple[int, ...] = ()
    known: dict[tuple[int, ...], tuple[After, list[int]]] = field(default_factory=dict)


class Placement(PoolState):
    """A pool's state with a search for places."""

    def find(
        self,
        demands: Sequence[RankDemand],
        *,
        discrepancies: int = 2,
        nodes: int = 400,
    ) -> tuple[int, ...] | Shortage:
        """A device for every rank of a stream, or what is missing. The state does not change."""
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
        """Memory that is missing in every assignment; then no search is needed.

        Either some rank fits nowhere by itself, or the ranks do not fit together: each device takes
        the ranks that need least of it, as many as fit. A block's weights that are not there yet
        are divided among the ranks of the stream that run it, so that no set of ranks needs less
        than its sum.
        """
        limit, tables = self.pool.memory_bytes, self.tables
        keys = np.concatenate([demand.keys for demand in demands])
        starts = np.cumsum([0] + [len(demand.keys) for demand in demands[:-1]])
        own = np.array([demand.bytes for demand in demands])
        weights = np.where(self._count[:, keys] == 0, tables.weight[keys], 0.0)
        free = limit * (1 + EPS) - self._memory(self._bytes + self._weights, self.streams + 1)
        alone = own + np.add.reduceat(weights, starts, axis=1)
        nowhere = np.flatnonzero((alone > free[:, None]).all(axis=0))
        if nowhere.size:
            rank = int(nowhere[0])
            missing = alone[:, rank] - free
        else:
            rank = -1
            sharing = np.bincount(keys, minlength=len(tables.weight))[keys]
            need = own + np.add.reduceat(weights / sharing, starts, axis=1)
            need = np.cumsum(np.sort(need, axis=1), axis=1)
            taken = (need <= free[:, None]).sum(axis=1)
            left = len(demands) - int(taken.sum())
            if left <= 0:
                return None
            # What each device would need in addition to hold the remaining ranks as well.
            missing = need[np.arange(len(free)), taken + left - 1] - free
        device = int(np.argmin(missing))
        return Shortage(
            resource="memory",
            device=device,
            rank=rank,
            missing=float(missing[device]),
            missing_share=float(missing[device]) / limit,
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
            search.deepest, search.placed = rank, chosen
        demand = demands[rank]
        known = search.known.get(chosen)
        if known is None:
            after = self.after(demand, chosen, fitting=True)
            known = search.known[chosen] = (after, list(self._candidates(after, chosen)))
        after, candidates = known
        for deviation, place in enumerate(candidates[: allowed + 1]):
            device = int(after.devices[place])
            newcomer = device not in chosen
            undo = self._lay(demand, device, after, place, newcomer)
            try:
                found = self._extend(demands, (*chosen, device), allowed - deviation, search)
            finally:
                self._lift(demand, device, undo, newcomer)
            if found is not None:
                return found
        return None

    def _lay(
        self, demand: RankDemand, device: int, after: After, place: int, newcomer: bool
    ) -> list[float]:
        """Place a rank for the duration of a search. `_lift` with the result removes it.

        `place`: the device's index in `after`.
        """
        undo = [float(values[device]) for values in self._sums()]
        self._count[device, demand.keys] += demand.tasks
        self._rate[device, demand.keys] += demand.tasks * demand.rate_hz
        self._bytes[device] += demand.bytes
        for mine, theirs in zip(self._sums(), after.sums()):
            mine[device] = theirs[place]
        self.streams[device] += newcomer
        return undo

    def _lift(self, demand: RankDemand, device: int, undo: Sequence[float], newcomer: bool) -> None:
        self._count[device, demand.keys] -= demand.tasks
        rate = self._rate[device]
        rate[demand.keys] -= demand.tasks * demand.rate_hz
        # Subtracting does not exactly undo adding; without tasks the rate is 0.
        rate[demand.keys] *= self._count[device, demand.keys] > 0
        self._bytes[device] -= demand.bytes
        for mine, before in zip(self._sums(), undo):
            mine[device] = before
        self.streams[device] -= newcomer

    def _sums(self) -> tuple[Floats, ...]:
        """In the order of `After.sums`."""
        return self._memory_now, self._load_now, self._mean, self._square, self._weights

    def _candidates(self, after: After, chosen: tuple[int, ...]) -> Iterator[int]:
        """Indices in `after` of devices that can take this rank, best first; of equal ones only
        one per host.
        """
        memory, load, devices = after.memory, after.load, after.devices
        limit = self.pool.memory_bytes
        fits = (memory <= limit * (1 + EPS)) & (load <= (1.0 - self.margin) * (1 + EPS))
        fitting = np.flatnonzero(fits)
        if len(fitting) < 2:
            yield from fitting.tolist()
            return
        now_memory, now_load = self.memory_used()[devices], self.load()[devices]
        hosts = self.hosts[devices]
        grown = (memory - now_memory) / limit + (load - now_load)
        room = (limit - now_memory) / limit + (1.0 - now_load)
        # Best: the fuller device, and the one on which this rank costs least (weights are there,
        # batches form). Spread: cost first, so that streams share weights that are there once.
        best = self.fit == "best"
        score = room + 2.0 * grown if best else 2.0 * grown - 0.02 * room
        if chosen:
            near = hosts == self.hosts[chosen[-1]]
            score = score + np.where(near, 0.0, 0.5 if best else 0.01)
            if best:
                score = score - np.where(devices == chosen[-1], 0.02, 0.0)
        seen: set[tuple[float, float, int]] = set()
        for place in fitting[np.argsort(score[fitting], kind="stable")].tolist():
            like = (float(score[place]), float(room[place]), int(hosts[place]))
            if like in seen and int(devices[place]) not in chosen:
                continue
            seen.add(like)
            yield place

    def _shortage(self, demands: Sequence[RankDemand], search: _Search) -> Shortage:
        """What the rank at which the search got stuck lacks on the device that lacks least."""
        rank = max(0, search.deepest)
        self._change(demands[:rank], search.placed, 1)
        after = self.after(demands[rank], search.placed)
        self._change(demands[:rank], search.placed, -1)
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
