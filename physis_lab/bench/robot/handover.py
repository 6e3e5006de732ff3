"""Largest position and velocity steps at hand-overs between chunks, over random sequences. Pure.

Each sequence draws its own chunks (late, early, reordered, repeated, noisy, jumping, of several
epochs) and its own overlap and underrun policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.timeline.chunk_overlap import POLICIES, Overlap
from physis_ros.timeline.chunk_timeline import ChunkTimeline
from physis_ros.timeline.timed_chunk import IncomingChunk
from physis_ros.timeline.types import UNDERRUN_POLICIES, TimelineConfig

Floats = npt.NDArray[np.float64]

_TICK_S = 0.01
_TICK_NS = 10_000_000
_START_NS = 1_700_000_000_000_000_000
_NAMES = ("lift", "spin")
_LIMITS = RobotLimits(
    names=_NAMES,
    lower=(-1.5, -math.inf),
    upper=(1.5, math.inf),
    velocity=(2.0, 3.0),
    acceleration=(8.0, 10.0),
    jump=(0.4, 0.4),
    wraps=(False, True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverResult:
    """`position_step_rad`: largest step beyond the motion's own velocity. `velocity_step_ratio`:
    largest velocity change of a tick / (acceleration limit x tick). `limit_ratio`: largest speed /
    limit. `not_at_rest`: sequences whose last velocity is not exactly zero."""

    sequences: int
    chunks_accepted: int
    chunks_refused: int
    position_step_rad: float
    velocity_step_ratio: float
    limit_ratio: float
    not_at_rest: int


def measure(sequences: int, seed: int) -> HandoverResult:
    """Run `sequences` random chunk sequences."""
    accepted = refused = restless = 0
    position_step = velocity_ratio = limit_ratio = 0.0
    most_change = np.array(_LIMITS.acceleration) * _TICK_S
    most_speed = np.array(_LIMITS.velocity)
    for index in range(sequences):
        random = np.random.default_rng((seed, index))
        timeline = _timeline(random)
        states = list(_states(timeline, random))
        positions = np.array([state[0] for state in states])
        velocities = np.array([state[1] for state in states])
        own = 0.5 * (velocities[1:] + velocities[:-1]) * _TICK_S
        position_step = max(position_step, float(np.max(np.abs(np.diff(positions, axis=0) - own))))
        change = np.abs(np.diff(velocities, axis=0))
        velocity_ratio = max(velocity_ratio, float(np.max(change / most_change)))
        limit_ratio = max(limit_ratio, float(np.max(np.abs(velocities) / most_speed)))
        restless += bool(velocities[-1].any())
        accepted += timeline.counts.accepted
        refused += timeline.counts.refused
    return HandoverResult(
        sequences=sequences,
        chunks_accepted=accepted,
        chunks_refused=refused,
        position_step_rad=position_step,
        velocity_step_ratio=velocity_ratio,
        limit_ratio=limit_ratio,
        not_at_rest=restless,
    )


def together(parts: Sequence[HandoverResult]) -> HandoverResult:
    """Combine one or more measurements."""
    return HandoverResult(
        sequences=sum(part.sequences for part in parts),
        chunks_accepted=sum(part.chunks_accepted for part in parts),
        chunks_refused=sum(part.chunks_refused for part in parts),
        position_step_rad=max(part.position_step_rad for part in parts),
        velocity_step_ratio=max(part.velocity_step_ratio for part in parts),
        limit_ratio=max(part.limit_ratio for part in parts),
        not_at_rest=sum(part.not_at_rest for part in parts),
    )


def _timeline(random: np.random.Generator) -> ChunkTimeline:
    timeline = ChunkTimeline(
        _LIMITS,
        TimelineConfig(
            tick_s=_TICK_S,
            overlap=Overlap(
                policy=POLICIES[random.integers(len(POLICIES))],
                fade_s=float(random.uniform(0.02, 0.3)),
                decay=float(random.uniform(0.0, 2.0)),
            ),
            underrun=UNDERRUN_POLICIES[random.integers(len(UNDERRUN_POLICIES))],
            coast_s=0.05,
            correction_share=float(random.uniform(0.2, 1.0)),
        ),
    )
    timeline.rebase(random.uniform(-1.0, 1.0, 2), np.zeros(2), _START_NS)
    return timeline


def _states(
    timeline: ChunkTimeline, random: np.random.Generator
) -> Iterator[tuple[Floats, Floats]]:
    now_ns = _START_NS
    for index in range(int(random.integers(2, 15))):
        timeline.offer(_chunk(timeline, random, index, now_ns), now_ns)
        for _ in range(int(random.integers(1, 25))):
            point = timeline.point(now_ns)
            yield point.position, point.velocity
            now_ns += _TICK_NS
    for _ in range(300):
        point = timeline.point(now_ns)
        yield point.position, point.velocity
        now_ns += _TICK_NS


def _chunk(
    timeline: ChunkTimeline, random: np.random.Generator, index: int, now_ns: int
) -> IncomingChunk:
    steps = int(random.integers(1, 12))
    step_ns = int(random.choice([20, 50, 80])) * 1_000_000
    here = timeline.point(now_ns).position + random.normal(0.0, random.choice([0.0, 0.02, 0.1]), 2)
    slope = random.uniform(-2.0, 2.0, 2)
    times_s = np.arange(steps)[:, None] * step_ns * 1e-9
    rough = random.normal(0.0, random.choice([0.0, 0.005, 0.05]), (steps, 2))
    positions = np.clip(here + times_s * slope + rough, -1.4, 1.4)
    start_ns = now_ns - int(random.integers(-100, 250)) * 1_000_000
    with_velocities = bool(random.integers(2))
    return IncomingChunk(
        epoch=max(1, timeline.epoch) + int(random.random() < 0.05),
        chunk_id=max(0, index + int(random.choice([0, 0, 0, 0, 2, -1]))),
        capture_oldest_ns=min(start_ns, now_ns),
        start_ns=start_ns,
        step_ns=step_ns,
        joint_names=_NAMES,
        positions=positions,
        velocities=np.tile(slope, (steps, 1)) if with_velocities else None,
    )
