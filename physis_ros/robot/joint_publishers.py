"""Finds two publishers that report different positions of one joint. Pure: the caller gives the
time.

Messages of two drivers on one topic alternate (a robot's, and a joint_state_publisher that somebody
left running). Each is whole and plausible alone, and whoever reads them jumps between two robots.

With the publisher's id in each sample, the positions of two publishers are compared over the last
moment: they disagree where the ranges of both lie apart. So a second publisher that repeats the
first one a little later agrees, also while the arm moves. Without ids (rclpy before Kilted) a joint
that jumps away and comes back between neighbours that stand still gives them away. The ends of a
fast swing, sampled slowly, look like such jumps but for those neighbours.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishersConfig:
    """tolerance_rad: how far apart two publishers may report a joint (rad or m).
    window_s: positions of one publisher that are compared with those of another. What another
        one reported more than a quarter of it ago is not compared, and one that repeats positions
        may be late by as much.
    hold_s: a disagreement lasts for so long after it was seen last.
    jump_rad: without ids, the smallest jump that counts.
    """

    tolerance_rad: float = 0.02
    window_s: float = 0.4
    hold_s: float = 2.0
    jump_rad: float = 0.1

    def __post_init__(self) -> None:
        for name in ("tolerance_rad", "window_s", "hold_s", "jump_rad"):
            if not getattr(self, name) > 0.0:
                raise UserError(name, getattr(self, name), "must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A joint that two publishers report at different positions (rad or m). `publishers`: the ids
    of both in the order of `positions`; empty where messages carry none."""

    joint: str
    positions: tuple[float, float]
    publishers: tuple[bytes, ...]

    def line(self, names: Mapping[bytes, str]) -> str:
        """One line for a person. `names`: the node of each publisher of the topics, by id."""
        first, second = self.positions
        if self.publishers and all(each in names for each in self.publishers):
            one, other = (names[each] for each in self.publishers)
            return (
                f"two publishers disagree: {self.joint} is {first:.3f} from {one} "
                f"and {second:.3f} from {other}; stop one of them"
            )
        known = ", ".join(sorted(names.values())) or "not known"
        return (
            f"two publishers disagree: {self.joint} is {first:.3f} and {second:.3f} in turn; "
            f"publishers: {known}; stop all but one"
        )


class JointPublishers:
    """Samples in, a disagreement out. `joints`: the ones that matter."""

    def __init__(self, joints: Sequence[str], config: PublishersConfig | None = None) -> None:
        self._config = config or PublishersConfig()
        self._joints = frozenset(joints)
        self._ranges: dict[bytes, dict[str, _Range]] = {}
        self._recent: dict[str, deque[float]] = {}
        self._returns_s: dict[str, deque[float]] = {}
        self._found: Disagreement | None = None
        self._found_s = -math.inf

    def see(
        self,
        names: Sequence[str],
        positions: Sequence[float],
        publisher: bytes | None,
        now_s: float,
    ) -> None:
        """Record a message that came at `now_s` (steady). Joints that do not matter and positions
        that are not finite are left out; `publisher` is None where the id is not known."""
        own = None if publisher is None else self._ranges.setdefault(publisher, {})
        for name, position in zip(names, positions):
            if name not in self._joints or not math.isfinite(position):
                continue
            if own is None:
                self._look_for_return(name, position, now_s)
            else:
                own.setdefault(name, _Range()).add(position, now_s, self._config.window_s)
        if publisher is not None and len(self._ranges) > 1:
            self._compare(publisher, now_s)

    def disagreement(self, now_s: float) -> Disagreement | None:
        """The newest one that was seen within `hold_s`; None where all agree."""
        if now_s - self._found_s > self._config.hold_s:
            self._found = None
        return self._found

    def forget(self) -> None:
        """As if nothing had been seen."""
        self._ranges.clear()
        self._recent.clear()
        self._returns_s.clear()
        self._found = None
        self._found_s = -math.inf

    def _compare(self, publisher: bytes, now_s: float) -> None:
        fresh_s = self._config.window_s / 4
        for other, theirs in list(self._ranges.items()):
            if other == publisher:
                continue
            if all(seen.silent_s(now_s) > self._config.hold_s for seen in theirs.values()):
                del self._ranges[other]
                continue
            for name, mine in self._ranges[publisher].items():
                reported = theirs.get(name)
                if reported is None or max(r.silent_s(now_s) for r in (mine, reported)) > fresh_s:
                    continue
                if mine.apart(reported) > self._config.tolerance_rad:
                    self._note(name, (mine.last, reported.last), (publisher, other), now_s)
                    return

    def _look_for_return(self, name: str, position: float, now_s: float) -> None:
        """Two returns of a joint within `hold_s` are no noise."""
        recent = self._recent.setdefault(name, deque(maxlen=5))
        recent.append(position)
        if len(recent) < 5 or not _returned(recent, self._config.jump_rad):
            return
        returns_s = self._returns_s.setdefault(name, deque(maxlen=2))
        returns_s.append(now_s)
        if len(returns_s) == 2 and now_s - returns_s[0] <= self._config.hold_s:
            self._note(name, (recent[1], recent[2]), (), now_s)

    def _note(
        self,
        joint: str,
        positions: tuple[float, float],
        publishers: tuple[bytes, ...],
        now_s: float,
    ) -> None:
        if publishers and publishers[0] > publishers[1]:
            # In one order, whoever of both spoke last.
            positions, publishers = positions[::-1], publishers[::-1]
        self._found = Disagreement(joint=joint, positions=positions, publishers=publishers)
        self._found_s = now_s


def _returned(recent: Sequence[float], least: float) -> bool:
    """Whether the middle one of five positions in a row jumped away by more than `least`.

    Both neighbours are then at one place, and those beyond them at that place or at the other one.
    Around the end of a smooth swing they are three times as far from their neighbours as these are
    from the middle.
    """
    first, before, away, back, last = recent
    jump = abs(away - before)
    near = 0.25 * jump
    return (
        jump > least
        and abs(back - before) < near
        and all(min(abs(end - before), abs(end - away)) < near for end in (first, last))
    )


class _Range:
    """Smallest and largest position of the last moment: one to two halves of the window."""

    def __init__(self) -> None:
        self.last = math.nan
        self._seen_s = -math.inf
        self._since_s = -math.inf
        self._now = (math.inf, -math.inf)
        self._before = (math.inf, -math.inf)

    def add(self, position: float, now_s: float, window_s: float) -> None:
        age_s = now_s - self._since_s
        if age_s > window_s / 2:
            self._before = self._now if age_s <= window_s else (math.inf, -math.inf)
            self._now = (math.inf, -math.inf)
            self._since_s = now_s
        low, high = self._now
        self._now = (min(low, position), max(high, position))
        self.last = position
        self._seen_s = now_s

    def silent_s(self, now_s: float) -> float:
        return now_s - self._seen_s

    def apart(self, other: _Range) -> float:
        """Distance of both ranges; negative where they overlap."""
        lows = [min(each._now[0], each._before[0]) for each in (self, other)]
        highs = [max(each._now[1], each._before[1]) for each in (self, other)]
        return max(lows) - min(highs)
