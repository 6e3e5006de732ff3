"""Fault trials by random search: a moving robot, one fault, then a stop. In simulation, with the
real decisions (`ClosedLoop`).

For each kind of fault: ticks of the controller that passed a limit, time from the stop to rest, and
what safety said. A trial's seed and kind determine it.

A stop is an emergency stop or the end of the chunks, at random, while the fault lasts. Without a
safety node it is the loss of that node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from physis_lab.bench.robot.simulated.chunk_source import ChunkSource
from physis_lab.bench.robot.simulated.closed_loop import ClosedLoop
from physis_lab.bench.robot.simulated.links import Link, Links
from physis_lab.bench.robot.simulated.played_motion import LimitUse
from physis_lab.bench.robot.simulated.random_series import HOME_RAD, random_timeline, ur5e_limits
from physis_ros.robot.joint_motion import Floats
from physis_ros.robot.trajectory_controller import Trajectory, TrajectoryPoint

_LATE_S = 0.2
_REST_LIMIT_S = 8.0
_QUIET = Link(usual_s=0.003, worst_s=0.003)
_QUIET_LINKS = Links(
    chunks=_QUIET,
    windows=_QUIET,
    trajectories=_QUIET,
    acknowledgements=Link(usual_s=0.006, worst_s=0.006),
    joints=_QUIET,
    commanded=_QUIET,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """`rest_s`: from the stop until the commanded velocity was zero for good, 0 where it was then;
    None: not within `_REST_LIMIT_S`."""

    kind: str
    seed: int
    use: LimitUse
    rest_s: float | None
    said: Counter[str]
    judged: Counter[str]


@dataclass(slots=True)
class KindTotals:
    """All trials of one kind. `rests_s`: of those in which the robot moved at the stop."""

    trials: int = 0
    violations: int = 0
    violated_seeds: list[int] = field(default_factory=list)
    acceleration: float = 0.0
    rests_s: list[float] = field(default_factory=list)
    restless_seeds: list[int] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)

    def add(self, one: TrialResult) -> None:
        self.trials += 1
        self.violations += one.use.violations
        self.acceleration = max(self.acceleration, one.use.acceleration)
        self.said.update(one.said)
        self.judged.update(one.judged)
        if one.use.violations:
            self.violated_seeds.append(one.seed)
        if one.rest_s is None:
            self.restless_seeds.append(one.seed)
        elif one.rest_s > 0.0:
            self.rests_s.append(one.rest_s)

    def rest_s(self, percent: float) -> float:
        """A percentile of the times to rest; NaN without any."""
        return float(np.percentile(self.rests_s, percent)) if self.rests_s else math.nan


Fault = Callable[[ClosedLoop, ChunkSource, np.random.Generator], None]


def _loss(loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator) -> None:
    """Each path of messages loses a share of them, or none."""

    def lossy(link: Link) -> Link:
        return replace(link, lost=float(random.choice([0.0, 0.1, 0.5])))

    old = loop.links
    loop.links = replace(
        old,
        chunks=lossy(old.chunks),
        windows=lossy(old.windows),
        trajectories=lossy(old.trajectories),
        acknowledgements=lossy(old.acknowledgements),
        joints=lossy(old.joints),
        commanded=lossy(old.commanded),
    )


def _delay(loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator) -> None:
    """Messages take up to `late_s` and acknowledgements longer."""

    def late(worst_s: float) -> Link:
        return Link(usual_s=0.01, worst_s=worst_s, slow=float(random.uniform(0.1, 0.9)))

    loop.links = Links(
        chunks=late(0.4),
        windows=late(0.3),
        trajectories=late(_LATE_S),
        acknowledgements=late(0.3),
        taking=late(_LATE_S),
        joints=late(0.15),
        commanded=late(0.3),
    )


def _reorder(loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator) -> None:
    """Messages overtake each other on every path but those of one reliable writer to a reader."""
    slow = float(random.uniform(0.2, 0.8))
    loose = Link(usual_s=0.003, worst_s=0.15, slow=slow, ordered=False)
    loop.links = replace(
        loop.links,
        chunks=loose,
        windows=loose,
        joints=replace(loose, worst_s=0.05),
        commanded=loose,
    )


def _duplicates(loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator) -> None:
    twice = Link(usual_s=0.02, worst_s=0.1, slow=0.3, twice=float(random.uniform(0.2, 1.0)))
    loop.links = replace(loop.links, chunks=twice, windows=twice, joints=twice, commanded=twice)


def _not_a_number(loop: ClosedLoop, source: ChunkSource, random: np.random.Generator) -> None:
    """In chunks, in windows on their way, and in joint states."""
    source.spoil = float(random.choice([0.0, 0.5, 1.0]))
    loop.spoiled_windows = float(random.choice([0.0, 0.2, 1.0]))
    loop.spoiled_joints = float(random.choice([0.0, 0.2, 1.0]))


def _clock_jump(loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator) -> None:
    for _ in range(int(random.integers(1, 4))):
        loop.jump_clock(float(random.choice([-1.0, 1.0]) * 10.0 ** random.uniform(-2.0, 2.0)))
        loop.run(float(random.uniform(0.05, 0.6)))


def _hung_subscriber(loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator) -> None:
    """Trajectories arrive, and no acknowledgement comes, for a while or for good."""
    before = loop.links
    loop.links = replace(before, acknowledgements=Link(lost=1.0))
    if random.random() < 0.5:
        loop.run(float(random.uniform(0.1, 1.5)))
        loop.links = before


def _hand_guiding(loop: ClosedLoop, source: ChunkSource, random: np.random.Generator) -> None:
    """The arm rests, a person moves it, and the controller is activated again. Chunks stop
    meanwhile, or not."""
    source.silent = True
    loop.run(2.0)
    source.silent = bool(random.random() < 0.7)
    guided(loop, random)
    source.silent = False
    loop.run(float(random.uniform(0.0, 1.5)))


def guided(loop: ClosedLoop, random: np.random.Generator) -> None:
    """Move some joints by up to 0.6 rad, slowly, while the controller does not run."""
    begin = loop.robot.position.copy()
    way = random.uniform(-0.6, 0.6, begin.size) * (random.random(begin.size) < 0.5)
    takes_s = float(random.uniform(0.4, 1.5))

    def path(since_s: float) -> Floats:
        part = min(max(since_s / takes_s, 0.0), 1.0)
        there: Floats = begin + way * part * part * (3.0 - 2.0 * part)
        return there

    loop.robot.stop()
    loop.guide(path)
    loop.run(takes_s + float(random.uniform(0.0, 0.5)))
    loop.guide(None)
    loop.robot.start()


def _foreign_publisher(loop: ClosedLoop, source: ChunkSource, random: np.random.Generator) -> None:
    """Somebody else appears on the controller's topic and soon sends a trajectory, while ours moves
    or rests."""
    if random.random() < 0.5:
        source.silent = True
        loop.run(1.5)
    loop.foreign_publisher = True
    loop.run(float(random.uniform(0.0, 1.5)))
    there = loop.robot.position + random.uniform(-0.4, 0.4, loop.robot.position.size)
    loop.robot.foreign(
        Trajectory(
            joint_names=loop.limits.names,
            points=(
                TrajectoryPoint(
                    time_from_start_s=1.5,
                    positions=tuple(there.tolist()),
                    velocities=(0.0,) * there.size,
                ),
            ),
        ),
        loop.now_s,
    )
    loop.run(float(random.uniform(0.2, 1.5)))
    source.silent = False
    loop.foreign_publisher = bool(random.integers(2))


def _controller_restart(
    loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator
) -> None:
    loop.robot.stop()
    loop.run(float(random.uniform(0.05, 2.0)))
    loop.robot.start()


def _buffer_stopped(loop: ClosedLoop, _source: ChunkSource, random: np.random.Generator) -> None:
    loop.stall(buffer_s=float(random.uniform(0.2, 2.0)))


def _safety_dead(loop: ClosedLoop, _source: ChunkSource, _random: np.random.Generator) -> None:
    loop.safety_lives = False


FAULTS: Mapping[str, Fault] = {
    "loss": _loss,
    "delay": _delay,
    "reorder": _reorder,
    "duplicates": _duplicates,
    "not_a_number": _not_a_number,
    "clock_jump": _clock_jump,
    "hung_subscriber": _hung_subscriber,
    "buffer_stopped": _buffer_stopped,
    "hand_guiding": _hand_guiding,
    "foreign_publisher": _foreign_publisher,
    "controller_restart": _controller_restart,
    "safety_dead": _safety_dead,
}


def play_trial(kind: str, seed: int) -> TrialResult:
    random = np.random.default_rng((seed, sorted(FAULTS).index(kind)))
    limits, home = ur5e_limits(), np.array(HOME_RAD)
    source = ChunkSource.any(limits, home, random)
    loop = ClosedLoop(
        limits, home, random, timeline=random_timeline(random), links=_QUIET_LINKS, source=source
    )
    loop.run(float(random.uniform(0.8, 2.0)))
    loop.operator_arms = True
    # What is said from the fault on.
    loop.counts.said.clear()
    FAULTS[kind](loop, source, random)
    if kind != "safety_dead":
        loop.run(float(random.uniform(0.0, 1.5)))
        if random.random() < 0.5:
            loop.safety.estop(loop.instant)
        else:
            source.silent = True
    loop.operator_arms = False
    stopped_s = loop.now_s
    loop.run_to_rest(_REST_LIMIT_S)
    last_s = loop.robot.motion.moving_until_s(stopped_s)
    rest_s = 0.0 if last_s is None else last_s - stopped_s
    return TrialResult(
        kind=kind,
        seed=seed,
        use=loop.robot.motion.limit_use(),
        rest_s=rest_s if loop.rests else None,
        said=loop.counts.said,
        judged=loop.counts.judged,
    )


def play_trials(
    trials: int, *, seed: int, kinds: Sequence[str], tell: Callable[[int], None]
) -> dict[str, KindTotals]:
    """`trials` in all, evenly over the kinds."""
    totals = {kind: KindTotals() for kind in kinds}
    for number in range(trials):
        kind = kinds[number % len(kinds)]
        totals[kind].add(play_trial(kind, seed + number // len(kinds)))
        tell(1)
    return totals
