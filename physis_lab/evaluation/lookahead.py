"""Policy wrappers that set the lookahead and shift the trajectory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from physis_core.types import Array
from physis_lab.arm.plant import Plant
from physis_lab.evaluation.policies import ActionPolicy, RefreshingPolicy


class LookaheadIgnored:
    """Calls the policy with lookahead 0, as if a chunk were in force at its capture.

    `by_time`: point k is due at capture + k * step, and the last point is held; otherwise it is due
    at arrival + k * step.
    """

    def __init__(self, policy: ActionPolicy, *, by_time: bool) -> None:
        self._policy = policy
        self._by_time = by_time

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        points = self._policy.chunks(now_s, plants, 0.0)
        return shifted(points, lookahead_s / self.step_s) if self._by_time else points


def shifted(points: Array, steps: float) -> Array:
    """points [E, K, J] from index `steps` on, interpolated, the last point held: [E, K, J]."""
    count = points.shape[1]
    place = np.clip(np.arange(count) + steps, 0.0, count - 1)
    low = np.minimum(place.astype(int), max(count - 2, 0))
    share = (place - low)[None, :, None]
    high = np.minimum(low + 1, count - 1)
    out: Array = (1.0 - share) * points[:, low] + share * points[:, high]
    return out


class LookaheadCapped:
    """Calls the policy with the true lookahead, up to the longest one of its training."""

    def __init__(self, policy: ActionPolicy, max_s: float) -> None:
        self._policy = policy
        self._max_s = max_s

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        capped_s = min(lookahead_s, self._max_s)
        points = self._policy.chunks(now_s, plants, capped_s)
        return shifted(points, (lookahead_s - capped_s) / self.step_s)


class LookaheadPerStep:
    """Gives each observation of a chunk its own lookahead: `apart_s` more than the next one's.

    Implements `RefreshingPolicy`. `steps`: observations of a chunk, D.
    """

    def __init__(
        self, policy: RefreshingPolicy, max_s: float, *, steps: int, apart_s: float
    ) -> None:
        self._policy = policy
        self._max_s = max_s
        self._steps = steps
        self._apart_s = apart_s
        self._observed: Counter[int] = Counter()

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def observe(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        self._observed[chunk] += 1
        left = self._steps - self._observed[chunk]
        own_s = min(lookahead_s + left * self._apart_s, self._max_s)
        self._policy.observe(chunk, plants, own_s)

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        return self._policy.chunks(now_s, plants, min(lookahead_s, self._max_s))
