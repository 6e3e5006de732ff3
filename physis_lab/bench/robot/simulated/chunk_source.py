"""A model that sends random action chunks: waves, ramps, changes of mind, noise, gaps, new epochs.

Times are nanoseconds of ROS time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.joint_motion import Floats
from physis_ros.timeline.timed_chunk import IncomingChunk


@dataclass(slots=True, kw_only=True)
class Habits:
    """`observes`: chunks begin where the arm was measured, as those of a policy that looks; else
    at the place of the wave, wherever the arm is. `late_s`: how long before it is sent a chunk's
    first point is due, at most."""

    steps: int
    step_s: float
    period_s: float
    jitter_s: float
    late_s: float
    ahead_s: float
    burst: float
    dropped: float
    new_epoch: float
    change: float
    with_velocities: bool
    observes: bool
    ramps: bool


class ChunkSource:
    """`silent`: it sends nothing. `spoil`: the share of chunks with a value that is not finite."""

    def __init__(
        self, limits: RobotLimits, home: Floats, random: np.random.Generator, habits: Habits
    ) -> None:
        self.habits = habits
        self.silent = False
        self.spoil = 0.0
        self._limits, self._home, self._random = limits, home, random
        joints = len(limits.names)
        self._rate = random.uniform(0.5, 3.0, joints)
        self._phase = random.uniform(0.0, 6.3, joints)
        self._size = random.uniform(0.02, 0.35, joints)
        self._noise = float(random.choice([0.0, 0.0, 0.002, 0.01, 0.05]))
        self._offset = -self._size * np.sin(self._phase)
        self._epoch, self._chunk_id = 1, 0
        self._begun_ns: int | None = None

    @classmethod
    def any(cls, limits: RobotLimits, home: Floats, random: np.random.Generator) -> ChunkSource:
        """One with random habits."""
        step_s = float(random.choice([0.02, 0.05, 0.08]))
        return cls(
            limits,
            home,
            random,
            Habits(
                steps=int(random.integers(1, 17)),
                step_s=step_s,
                period_s=float(random.uniform(0.03, 0.4)),
                jitter_s=float(random.choice([0.0, 0.02, 0.15])),
                late_s=float(random.choice([0.0, 0.05, 0.2])),
                ahead_s=float(random.choice([0.0, 0.05, 0.25])),
                burst=float(random.choice([0.0, 0.1])),
                dropped=float(random.choice([0.0, 0.1, 0.4])),
                new_epoch=float(random.choice([0.0, 0.05])),
                change=float(random.choice([0.0, 0.1, 0.5])),
                with_velocities=bool(random.integers(2)),
                observes=bool(random.integers(2)),
                ramps=bool(random.random() < 0.3),
            ),
        )

    def wait_s(self) -> float:
        """Until the next chunks leave."""
        habits, random = self.habits, self._random
        return max(0.005, habits.period_s + float(random.uniform(-1.0, 1.0)) * habits.jitter_s)

    def chunks(self, now_ns: int, measured: Floats) -> list[IncomingChunk]:
        """What leaves now: mostly one chunk, `measured` [joints] is where the arm is."""
        habits, random = self.habits, self._random
        if self.silent:
            return []
        count = 3 if random.random() < habits.burst else 1
        return [
            chunk
            for chunk in (self._chunk(now_ns, measured) for _ in range(count))
            if random.random() >= habits.dropped
        ]

    def _chunk(self, now_ns: int, measured: Floats) -> IncomingChunk:
        habits, random = self.habits, self._random
        self._chunk_id += 1
        if random.random() < habits.new_epoch:
            self._epoch, self._chunk_id = self._epoch + 1, 0
        if random.random() < habits.change:
            self._offset = self._offset + random.uniform(-0.25, 0.25, len(measured))
        captured_ns = now_ns - round(random.uniform(0.02, 0.15) * 1e9)
        begins_s = float(random.uniform(-habits.late_s, habits.ahead_s))
        start_ns = now_ns + round(begins_s * 1e9)
        if self._begun_ns is None or abs(now_ns - self._begun_ns) > 3_600_000_000_000:
            self._begun_ns = now_ns
        at_s = (start_ns - self._begun_ns) * 1e-9 + np.arange(habits.steps)[:, None] * habits.step_s
        if habits.ramps:
            slope = random.uniform(-2.0, 2.0, len(measured))
            points = measured + (at_s - at_s[0]) * slope
            velocities = np.tile(slope, (habits.steps, 1))
        else:
            if habits.observes:
                there = self._size * np.sin(self._rate * at_s[0] + self._phase)
                self._offset = measured - self._home - there
            angle = self._rate * at_s + self._phase
            points = self._home + self._offset + self._size * np.sin(angle)
            velocities = self._size * self._rate * np.cos(angle)
        points = points + random.normal(0.0, self._noise, points.shape)
        lower, upper = np.array(self._limits.lower), np.array(self._limits.upper)
        points = np.clip(points, lower + 0.02, upper - 0.02)
        if random.random() < self.spoil:
            points[-1, 0] = np.nan
        return IncomingChunk(
            epoch=self._epoch,
            chunk_id=self._chunk_id,
            capture_oldest_ns=captured_ns,
            start_ns=start_ns,
            step_ns=round(habits.step_s * 1e9),
            joint_names=self._limits.names,
            positions=points,
            velocities=velocities if habits.with_velocities else None,
        )
