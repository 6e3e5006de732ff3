"""What a policy is told of its lookahead, and where its points lie then: policies around one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from physis_core.types import Array
from physis_lab.arm.plant import Plant
from physis_lab.evaluation.closed_loop import Policy, RefreshingPolicy


class NotTold:
    """A policy that believes its chunks to be in force at once.

    `by_time`: point k is played at capture + k * step, held past the last; else at arrival + k *
    step.
    """

    def __init__(self, policy: Policy, *, by_time: bool) -> None:
        self._policy = policy
        self._by_time = by_time

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        points = self._policy.chunks(now_s, plants, 0.0)
        return later(points, lookahead_s / self.step_s) if self._by_time else points


def later(points: Array, steps: float) -> Array:
    """The path of points [E, K, J] seen from `steps` points on, held past the last: [E, K, J]."""
    count = points.shape[1]
    place = np.clip(np.arange(count) + steps, 0.0, count - 1)
    low = np.minimum(place.astype(int), max(count - 2, 0))
    share = (place - low)[None, :, None]
    high = np.minimum(low + 1, count - 1)
    out: Array = (1.0 - share) * points[:, low] + share * points[:, high]
    return out


class Told:
    """A policy that is told the lookahead, up to what it was trained for."""

    def __init__(self, policy: Policy, max_s: float) -> None:
        self._policy = policy
        self._max_s = max_s

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        told_s = min(lookahead_s, self._max_s)
        points = self._policy.chunks(now_s, plants, told_s)
        return later(points, (lookahead_s - told_s) / self.step_s)


class ToldEach:
    """Each observation of a chunk is told its own time to the exit: `apart_s` more than the next.

    Implements `RefreshingPolicy`. `steps`: looks of a chunk, D.
    """

    def __init__(
        self, policy: RefreshingPolicy, max_s: float, *, steps: int, apart_s: float
    ) -> None:
        self._policy = policy
        self._max_s = max_s
        self._steps = steps
        self._apart_s = apart_s
        self._looks: Counter[int] = Counter()

    @property
    def step_s(self) -> float:
        return self._policy.step_s

    def look(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        self._looks[chunk] += 1
        left = self._steps - self._looks[chunk]
        self._policy.look(chunk, plants, min(lookahead_s + left * self._apart_s, self._max_s))

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        return self._policy.chunks(now_s, plants, min(lookahead_s, self._max_s))
