"""A plan on a grid of servo ticks: the state at each tick, and the observation it is based on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from physis_ros.robot.joint_motion import Floats
from physis_ros.timeline.chunk_overlap import Reference
from physis_ros.timeline.motion_follower import JointFollower
from physis_ros.timeline.timed_chunk import Nanoseconds

# Every real arm stops far sooner; a longer tail means that a limit is absurd.
_MAX_TAIL_TICKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServoPlan:
    """N ticks from `start_ns` on: positions, velocities [N, joints]; the others [N].

    `valid`: a chunk determines the motion up to that tick; else it is the tail, or rest.
    """

    start_ns: int
    tick_ns: int
    positions: Floats
    velocities: Floats
    valid: npt.NDArray[np.bool_]
    capture_oldest_ns: Nanoseconds
    epoch: Nanoseconds
    chunk_id: Nanoseconds

    @classmethod
    def from_state(cls, position: Floats, velocity: Floats, at_ns: int, tick_ns: int) -> ServoPlan:
        return cls(
            start_ns=at_ns,
            tick_ns=tick_ns,
            positions=np.array(position, dtype=np.float64)[None, :],
            velocities=np.array(velocity, dtype=np.float64)[None, :],
            valid=np.zeros(1, dtype=np.bool_),
            capture_oldest_ns=np.zeros(1, dtype=np.int64),
            epoch=np.zeros(1, dtype=np.int64),
            chunk_id=np.full(1, -1, dtype=np.int64),
        )

    @property
    def size(self) -> int:
        return len(self.positions)

    def time_ns(self, index: int) -> int:
        """The instant of a tick; the grid goes on after the last one."""
        return self.start_ns + index * self.tick_ns

    def index_at_or_after(self, at_ns: int) -> int:
        """The first tick at or after `at_ns`; may lie beyond the plan."""
        return max(0, -((self.start_ns - at_ns) // self.tick_ns))

    def locate(self, at_ns: int) -> tuple[int, float]:
        """The tick at or before `at_ns`, at most the last, and the seconds since it."""
        index = min(max(0, (at_ns - self.start_ns) // self.tick_ns), self.size - 1)
        return index, max(0, at_ns - self.time_ns(index)) * 1e-9

    def until(self, from_ns: int, to_ns: int) -> ServoPlan:
        """The ticks from the one at or before `from_ns` to the one at or after `to_ns`.

        A plan that ended at rest is continued at rest.
        """
        first = max(0, (from_ns - self.start_ns) // self.tick_ns)
        last = self.index_at_or_after(to_ns)
        held = np.minimum(np.arange(first, last + 1), self.size - 1)
        after = np.arange(first, last + 1) >= self.size
        return ServoPlan(
            start_ns=self.time_ns(first),
            tick_ns=self.tick_ns,
            positions=self.positions[held],
            velocities=self.velocities[held],
            valid=self.valid[held] & ~after,
            capture_oldest_ns=self.capture_oldest_ns[held],
            epoch=self.epoch[held],
            chunk_id=self.chunk_id[held],
        )

    def extended(
        self, followers: Sequence[JointFollower], wanted: Reference, *, coast_ticks: int
    ) -> ServoPlan:
        """Continue from the last tick along `wanted` (its first instant is that tick), then to
        rest.

        Where `wanted` is not valid the joints keep their velocity for `coast_ticks` and brake then.
        """
        tails = [
            _follow(
                follower,
                float(self.positions[-1, joint]),
                float(self.velocities[-1, joint]),
                wanted.positions[:, joint].tolist(),
                wanted.velocities[:, joint].tolist(),
                wanted.valid.tolist(),
                coast_ticks,
                self.tick_ns * 1e-9,
            )
            for joint, follower in enumerate(followers)
        ]
        ticks = max(len(tail) for tail in tails)
        added = np.empty((ticks, len(tails), 2))
        for joint, tail in enumerate(tails):
            if tail:
                added[: len(tail), joint] = tail
                added[len(tail) :, joint] = (tail[-1][0], 0.0)
            else:
                added[:, joint] = (self.positions[-1, joint], 0.0)
        given = min(len(wanted.valid) - 1, ticks)
        padding = ticks - given

        def joined(old: Nanoseconds, new: Nanoseconds, fill: int) -> Nanoseconds:
            return np.concatenate([old, new[1 : given + 1], np.full(padding, fill)])

        return ServoPlan(
            start_ns=self.start_ns,
            tick_ns=self.tick_ns,
            positions=np.concatenate([self.positions, added[:, :, 0]]),
            velocities=np.concatenate([self.velocities, added[:, :, 1]]),
            valid=np.concatenate(
                [self.valid, wanted.valid[1 : given + 1], np.zeros(padding, dtype=np.bool_)]
            ),
            capture_oldest_ns=joined(self.capture_oldest_ns, wanted.capture_oldest_ns, 0),
            epoch=joined(self.epoch, wanted.epoch, 0),
            chunk_id=joined(self.chunk_id, wanted.chunk_id, -1),
        )


def _follow(
    follower: JointFollower,
    position: float,
    velocity: float,
    wanted: list[float],
    wanted_velocity: list[float],
    valid: list[bool],
    coast_ticks: int,
    tick_s: float,
) -> list[tuple[float, float]]:
    path: list[tuple[float, float]] = []
    coasting = coast_ticks
    for tick in range(len(valid) - 1):
        if valid[tick + 1]:
            # Where the reference begins here, it is extended backwards at its own velocity.
            if valid[tick]:
                begin, begin_velocity = wanted[tick], wanted_velocity[tick]
            else:
                begin_velocity = wanted_velocity[tick + 1]
                begin = wanted[tick + 1] - tick_s * begin_velocity
            position, velocity = follower.follow(
                position,
                velocity,
                begin,
                begin_velocity,
                wanted[tick + 1],
                wanted_velocity[tick + 1],
            )
            coasting = coast_ticks
        elif coasting > 0:
            coasting -= 1
            position, velocity = _coast(follower, position, velocity, tick_s)
        else:
            position, velocity = follower.brake(position, velocity)
        path.append((position, velocity))
    while velocity != 0.0 or coasting > 0:
        if len(path) > _MAX_TAIL_TICKS:
            raise RuntimeError("a joint does not come to rest; its acceleration limit is absurd")
        if coasting > 0 and velocity != 0.0:
            coasting -= 1
            position, velocity = _coast(follower, position, velocity, tick_s)
        else:
            coasting = 0
            position, velocity = follower.brake(position, velocity)
        path.append((position, velocity))
    return path


def _coast(
    follower: JointFollower, position: float, velocity: float, tick_s: float
) -> tuple[float, float]:
    return follower.follow(
        position, velocity, position, velocity, position + tick_s * velocity, velocity
    )
