"""Random series of chunks through buffer, safety and controller: does safety refuse what the buffer
sends, and does the played motion keep the limits?

A series has random chunks (`ChunkSource`), a random overlap mode, and a load: how late messages and
acknowledgements are, and how long the nodes do not run. Its seed determines it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from physis_lab.bench.robot.simulated.chunk_source import ChunkSource
from physis_lab.bench.robot.simulated.closed_loop import ClosedLoop
from physis_lab.bench.robot.simulated.links import Link, Links
from physis_lab.bench.robot.simulated.played_motion import LimitUse
from physis_ros.robot.joint_limits import RobotLimits
from physis_ros.robot.robot_files import load_robot_limits
from physis_ros.timeline.chunk_overlap import POLICIES, Overlap
from physis_ros.timeline.types import UNDERRUN_POLICIES, TimelineConfig

HOME_RAD = (0.0, -1.2, 1.4, -1.6, -1.5, 0.0)
SERIES_S = 2.0
_LATE_S = 0.2
# Half the rate of the real loop, for speed: a tick only watches, windows are judged between ticks.
_SAFETY_S = 0.01


def ur5e_limits() -> RobotLimits:
    return load_robot_limits(
        joint_names=(), robot_file="ur5e", robot_description="", robot_description_file=""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesResult:
    """`judged`: windows that reached safety, by its answer; `examples`: one reason of each kind."""

    seed: int
    windows: int
    judged: Counter[str]
    examples: dict[str, str]
    rebases: int
    use: LimitUse
    rests: bool

    @property
    def refused(self) -> int:
        """Windows that safety judged and refused."""
        return sum(n for kind, n in self.judged.items() if kind.startswith("refused"))


@dataclass(slots=True)
class SeriesTotals:
    series: int = 0
    windows: int = 0
    rebases: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[int, str]] = field(default_factory=dict)
    violations: int = 0
    violated_seeds: list[int] = field(default_factory=list)
    restless_seeds: list[int] = field(default_factory=list)
    acceleration: float = 0.0
    velocity: float = 0.0

    def add(self, one: SeriesResult) -> None:
        self.series += 1
        self.windows += one.windows
        self.rebases += one.rebases
        self.judged.update(one.judged)
        for kind, reason in one.examples.items():
            self.examples.setdefault(kind, (one.seed, reason))
        self.violations += one.use.violations
        if one.use.violations:
            self.violated_seeds.append(one.seed)
        if not one.rests:
            self.restless_seeds.append(one.seed)
        self.acceleration = max(self.acceleration, one.use.acceleration)
        self.velocity = max(self.velocity, one.use.velocity)


def random_timeline(random: np.random.Generator) -> TimelineConfig:
    return TimelineConfig(
        lead_s=0.06,
        overlap=Overlap(
            policy=POLICIES[random.integers(len(POLICIES))],
            fade_s=float(random.uniform(0.02, 0.3)),
            decay=float(random.uniform(0.0, 2.0)),
        ),
        underrun=UNDERRUN_POLICIES[random.integers(len(UNDERRUN_POLICIES))],
        coast_s=0.1,
        correction_share=float(random.choice([0.6, random.uniform(0.2, 1.0)])),
    )


def random_links(random: np.random.Generator) -> Links:
    """From a quiet machine to one where messages take up to `late_s`, and acknowledgements longer;
    a lost trajectory now and then."""
    worst_s = float(random.choice([0.005, 0.05, _LATE_S]))
    slow = float(random.choice([0.0, 0.1, 0.5]))
    lost = float(random.choice([0.0, 0.0, 0.02]))
    usual = Link(usual_s=0.003, worst_s=worst_s, slow=slow)
    return Links(
        chunks=Link(
            usual_s=0.003, worst_s=worst_s, slow=slow, lost=lost, twice=lost, ordered=lost == 0.0
        ),
        windows=usual,
        trajectories=Link(usual_s=0.003, worst_s=worst_s, slow=slow, lost=lost),
        acknowledgements=Link(
            usual_s=0.006, worst_s=float(random.choice([0.006, 0.1, 0.3])), slow=slow
        ),
        taking=Link(
            usual_s=float(random.choice([0.0, _LATE_S])),
            worst_s=float(random.choice([0.0, _LATE_S])),
        ),
        joints=Link(usual_s=0.002, worst_s=0.02, slow=slow),
        commanded=usual,
    )


def play_series(seed: int) -> SeriesResult:
    random = np.random.default_rng(seed)
    limits, home = ur5e_limits(), np.array(HOME_RAD)
    source = ChunkSource.any(limits, home, random)
    loop = ClosedLoop(
        limits,
        home,
        random,
        timeline=random_timeline(random),
        links=random_links(random),
        source=source,
        safety_s=_SAFETY_S,
    )
    stall_s = float(random.choice([0.0, 0.0, 0.05, 0.3]))
    end_s = loop.now_s + SERIES_S
    while loop.now_s < end_s:
        loop.run(float(random.uniform(0.05, 0.4)))
        if stall_s:
            loop.stall(
                buffer_s=float(random.choice([0.0, random.uniform(0.0, stall_s)])),
                safety_s=float(random.choice([0.0, random.uniform(0.0, min(stall_s, 0.08))])),
            )
    source.silent = True
    loop.run_to_rest(4.0)
    return SeriesResult(
        seed=seed,
        windows=loop.counts.windows,
        judged=loop.counts.judged,
        examples=loop.counts.examples,
        rebases=loop.buffer.rebases,
        use=loop.robot.motion.limit_use(),
        rests=loop.rests,
    )


def play_many(seeds: Iterable[int], tell: Callable[[SeriesResult], None]) -> SeriesTotals:
    totals = SeriesTotals()
    for seed in seeds:
        found = play_series(seed)
        totals.add(found)
        tell(found)
    return totals
