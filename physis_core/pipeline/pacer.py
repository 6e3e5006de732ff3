"""Bursts of finished chunks in, periodic delivery out.

A state machine: events and `now` in, plain data out. A chunk released at r_i is due at D_i = r_i +
offset, so that D[i+1] - D[i] is the stream's period as long as the offset stands. The offset is the
p99 of the measured response (release to completion) plus a margin, and a little more, so that it
may stand while the p99 moves a little; what it exceeds the median response by is the buffer's
depth. Too shallow, and deliveries starve; too deep, and actions age: a
maximum action age caps it, and where it does so the pacer says it. D_i is fixed when the chunk is
released and never moved afterwards, so that a miss cannot be argued away.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import Literal

from physis_core.types import UserError

_ROOM = 0.02
"""Share of the period between the offset that is wanted and the one that is set: small moves are
not worth a break in the period, and chunks that are late by less than one would be missed for ever.
"""

_STALL_PERIODS = 3.0

ReanchorReason = Literal["first responses", "deeper", "shallower", "after a stall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerConfig:
    """How a stream is paced.

    `period_s` None: free running, chunks are delivered as they finish and nothing is ever missed.
    `expected_response_s`: the offset before anything was measured.
    `margin_s`: added to the p99 of the response.
    `max_action_age_s`: cap on capture-to-delivery.
    `window`: responses over which the p99 is taken; the first `first_responses` settle the offset.
    `hold`: False delivers at once, keeping the accounting.
    `stall_s`: a chunk that is later than this does not count as jitter, as long as few are (None:
    three periods).
    """

    period_s: float | None
    expected_response_s: float = 0.0
    margin_s: float = 0.0
    max_action_age_s: float = math.inf
    window: int = 512
    first_responses: int = 16
    hold: bool = True
    stall_s: float | None = None

    def __post_init__(self) -> None:
        if self.period_s is not None and not 0.0 < self.period_s < math.inf:
            raise UserError("period_s", self.period_s, "must be positive and finite")
        for name in ("expected_response_s", "margin_s"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UserError(name, value, "must be finite and not negative")
        if not self.max_action_age_s > 0.0:
            raise UserError("max_action_age_s", self.max_action_age_s, "must be positive")
        if self.first_responses < 1 or self.window < self.first_responses:
            raise UserError("window", self.window, "must be at least first_responses, at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Deliver this chunk at `deliver_s`: D_i, or at once where it is late or not held."""

    chunk_id: int
    release_s: float
    exit_s: float
    deadline_s: float
    deliver_s: float

    @property
    def missed(self) -> bool:
        return self.exit_s > self.deadline_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PacerState:
    """Counters and present setting. `offset_s` = D_i - r_i; `depth_s` = offset - median
    response.
    """

    offset_s: float
    depth_s: float
    response_p50_s: float
    response_p99_s: float
    capped: bool
    delivered: int
    misses: int
    stalls: int
    reanchors: int
    last_reanchor: ReanchorReason | None
    held: int


class Pacer:
    """One stream's way out. Not thread-safe: one owner."""

    def __init__(self, config: PacerConfig) -> None:
        self._config = config
        period_s = config.period_s
        self._offset_s = (
            math.inf if period_s is None else self._cap(config.expected_response_s, 0.0)
        )
        self._stall_s = math.inf if period_s is None else _STALL_PERIODS * period_s
        if config.stall_s is not None:
            self._stall_s = config.stall_s
        self._due: dict[int, tuple[float, float]] = {}
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._held: deque[Delivery] = deque()
        self._last_deliver_s = -math.inf
        self._age_s = 0.0
        self._shallow_for = 0
        self._completed = 0
        self._stalled: deque[int] = deque()
        """Which of the last `window` completions were stalls."""
        self._settled = False
        self._stalls_count = False
        """Whether they were so many that they are taken for jitter."""
        self._capped = False
        self._delivered = self._misses = self._stalls = self._reanchors = 0
        self._last_reanchor: ReanchorReason | None = None

    @property
    def config(self) -> PacerConfig:
        return self._config

    def released(self, chunk_id: int, release_s: float, observation_age_s: float = 0.0) -> float:
        """A chunk entered, `release_s` being its nominal time. Returns its deadline D_i, for
        good.
        """
        # The oldest observation of late decides the cap: it is what an action would be aged by.
        self._age_s = max(observation_age_s, self._age_s * 0.99)
        deadline_s = release_s + self._offset_s
        self._due[chunk_id] = (release_s, deadline_s)
        return deadline_s

    def completed(self, chunk_id: int, exit_s: float) -> Delivery:
        """The chunk finished. It is also kept until `due` hands it out.

        Raises:
            KeyError: the chunk was never released.
        """
        release_s, deadline_s = self._due.pop(chunk_id)
        deliver_s = exit_s
        if self._config.hold and deadline_s < math.inf:
            deliver_s = max(exit_s, deadline_s)
        deliver_s = max(deliver_s, self._last_deliver_s)
        self._last_deliver_s = deliver_s
        delivery = Delivery(
            chunk_id=chunk_id,
            release_s=release_s,
            exit_s=exit_s,
            deadline_s=deadline_s,
            deliver_s=deliver_s,
        )
        self._held.append(delivery)
        if delivery.missed:
            self._misses += 1
        self._learn(exit_s - release_s, exit_s - deadline_s)
        return delivery

    def cancelled(self, chunk_id: int) -> None:
        """The chunk will never finish. Nothing is learned from it."""
        self._due.pop(chunk_id, None)

    def due(self, now_s: float) -> list[Delivery]:
        """Chunks to deliver now, in order; each is handed out once."""
        out: list[Delivery] = []
        while self._held and self._held[0].deliver_s <= now_s:
            out.append(self._held.popleft())
        self._delivered += len(out)
        return out

    def next_due_s(self) -> float:
        """When `due` has something to give; infinite where nothing is held."""
        return self._held[0].deliver_s if self._held else math.inf

    @property
    def response_p99_s(self) -> float:
        """Over the window; NaN while nothing was completed."""
        return self._quantile(0.99)

    def state(self) -> PacerState:
        median_s = self._quantile(0.5)
        periodic = self._config.period_s is not None
        return PacerState(
            offset_s=self._offset_s,
            depth_s=self._offset_s - median_s if periodic and self._sorted else 0.0,
            response_p50_s=median_s,
            response_p99_s=self._quantile(0.99),
            capped=self._capped,
            delivered=self._delivered,
            misses=self._misses,
            stalls=self._stalls,
            reanchors=self._reanchors,
            last_reanchor=self._last_reanchor,
            held=len(self._held),
        )

    def _learn(self, response_s: float, late_s: float) -> None:
        self._completed += 1
        while self._stalled and self._stalled[0] <= self._completed - self._config.window:
            self._stalled.popleft()
        if late_s > self._stall_s and self._settled:
            # A stall is not jitter: sizing the buffer for it would age every action after it.
            self._stalls += 1
            self._stalled.append(self._completed)
            if len(self._stalled) < self._config.first_responses:
                return
            # So many of them are no stalls: the pipeline has become slower, or is that jittery.
            self._stalled.clear()
            self._recent.clear()
            self._sorted.clear()
            self._settled = False
            self._stalls_count = True
            self._last_reanchor = "after a stall"
        self._recent.append(response_s)
        insort(self._sorted, response_s)
        if len(self._recent) > self._config.window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        if self._config.period_s is not None:
            self._size_depth(self._config.period_s)

    def _size_depth(self, period_s: float) -> None:
        n = len(self._sorted)
        room_s = _ROOM * period_s
        offset_s = self._cap(self._quantile(0.99) + self._config.margin_s + room_s, self._age_s)
        # The wanted offset has passed the one that stands. The cap moves a little with every
        # observation's age, which is no reason either.
        deeper = offset_s > self._offset_s + room_s
        if not self._settled:
            if n < self._config.first_responses:
                # Without a measured tail yet, only ever deepen, so that the pipeline's fill is not
                # all misses.
                if deeper:
                    self._reanchor(offset_s, "first responses")
                return
            self._settled = True
            if not self._stalls_count:
                self._forget_stalls()
            offset_s = self._cap(self._quantile(0.99) + self._config.margin_s + room_s, self._age_s)
            reason: ReanchorReason = "first responses"
            if self._last_reanchor == "after a stall":
                reason = "after a stall"
            self._reanchor(offset_s, reason)
            return
        if deeper:
            self._shallow_for = 0
            self._reanchor(offset_s, "deeper")
        elif offset_s < self._offset_s - 0.25 * period_s:
            self._shallow_for += 1
            if self._shallow_for >= self._config.window:
                self._shallow_for = 0
                self._reanchor(offset_s, "shallower")
        else:
            self._shallow_for = 0

    def _forget_stalls(self) -> None:
        """Of the first responses, those that took far longer than most: a stall while the offset
        was settled must not stand in it. Half of them are not: the pipeline is that slow.
        """
        most_s = self._quantile(0.5) + self._stall_s
        kept = [response_s for response_s in self._recent if response_s <= most_s]
        self._stalls += len(self._recent) - len(kept)
        self._recent = deque(kept)
        self._sorted = sorted(kept)

    def _reanchor(self, offset_s: float, reason: ReanchorReason) -> None:
        if offset_s != self._offset_s:
            self._reanchors += 1
            self._last_reanchor = reason
        self._offset_s = offset_s

    def _cap(self, offset_s: float, age_s: float) -> float:
        most_s = max(0.0, self._config.max_action_age_s - age_s)
        self._capped = offset_s > most_s
        return min(offset_s, most_s)

    def _quantile(self, q: float) -> float:
        """Nearest rank from above over the window; NaN while empty."""
        if not self._sorted:
            return math.nan
        return self._sorted[min(len(self._sorted) - 1, math.ceil(q * len(self._sorted)) - 1)]
