"""Equal groups of devices against joint scheduling: the most streams that a pool verifiably
carries.

Even split: the pool is cut into groups of g devices, one stream each; g is the smallest that keeps
the SLO. Joint: streams are admitted one by one into the whole pool. Both counts are then verified
by the full simulation, and reduced until no chunk is late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from physis_core.deployment.profile import ModelProfile
from physis_core.deployment.slo import Slo
from physis_core.deployment.topology import Pool
from physis_core.plan.admission import Admission
from physis_core.plan.arrivals import stream_of
from physis_core.plan.packing import pack
from physis_core.plan.placement.grouping import Planner
from physis_core.plan.requests import AdmissionPolicy, Admitted, StreamRequest
from physis_core.plan.slo_check import component, phase
from physis_core.sim.noise import NoiseSpec
from physis_core.sim.scenario import Scenario, SimStream
from physis_core.sim.simulator import Simulator

_PERIODS = 12
_NOISE = NoiseSpec(p99_ratio=1.05)
"""Noise of the simulations that verify a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Equal streams and their places, both ways. `joint_placed`: placed before verification."""

    even: tuple[Admitted, ...]
    joint: tuple[Admitted, ...]
    joint_placed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`even_devices` is the size of a group (0: no group keeps the SLO)."""

    model: str
    even: int
    even_devices: int
    even_shape: str
    joint: int
    joint_placed: int
    joint_shapes: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.joint / self.even if self.even else math.inf


def compare(
    profile: ModelProfile,
    pool: Pool,
    slo: Slo,
    policy: AdmissionPolicy,
) -> Comparison:
    """The largest verified number of equal streams, both ways."""
    found = split(profile, pool, slo, policy)
    group = found.even[0] if found.even else None
    return Comparison(
        model=profile.name,
        even=len(found.even),
        even_devices=0 if group is None else len(group.devices),
        even_shape="" if group is None else group.plan.shape,
        joint=len(found.joint),
        joint_placed=found.joint_placed,
        joint_shapes=tuple({one.plan.shape: None for one in found.joint}),
    )


def split(
    profile: ModelProfile,
    pool: Pool,
    slo: Slo,
    policy: AdmissionPolicy,
) -> Split:
    """The most equal streams that are verified, both ways, with their places."""
    most = pool.devices * 8
    asked = [StreamRequest(stream_id=f"s{i}", model=profile.name, slo=slo) for i in range(most)]
    admission = pack(
        pool,
        {profile.name: profile},
        # Joint scheduling must share devices; streams on their own devices are the even split.
        replace(policy, advise=False, alone=False, stop_at_refusal=True),
        asked,
        attempts=2 * policy.groupings + 2,
    )
    placed = list(admission.admitted.values())
    kept = (one for part in _components(placed) for one in part[: _most_verified(admission, part)])
    return Split(
        even=_even(profile, pool, slo, policy),
        joint=tuple(kept),
        joint_placed=len(placed),
    )


def _even(
    profile: ModelProfile,
    pool: Pool,
    slo: Slo,
    policy: AdmissionPolicy,
) -> tuple[Admitted, ...]:
    """A stream for each of the smallest groups that keep the SLO alone on their devices."""
    planner = Planner(profile, pool, max_batch=policy.max_batch)
    for size in range(1, pool.devices + 1):
        fitting = planner.fitting(size, slo.period_s * (1.0 - policy.margin), slo.max_response_s)
        for plan in fitting[:1]:
            group = replace(pool, devices=size)
            alone = replace(policy, shared_bytes=0.0, shared_overhead=0.0, verify=False)
            models, planners = {profile.name: profile}, {profile.name: planner}
            admission = Admission(group, models, alone, planners=planners)
            streams = tuple(
                Admitted(
                    request=StreamRequest(stream_id=f"s{i}", model=profile.name, slo=slo),
                    plan=plan,
                    devices=tuple(range(i * size, (i + 1) * size)),
                )
                for i in range(pool.devices // size)
            )
            if _kept([stream_of(streams[0], admission)], admission, 1.0):
                return streams
    return ()


def _components(placed: Sequence[Admitted]) -> list[list[Admitted]]:
    """Groups of streams that share devices, directly or not; groups do not affect each other."""
    by_id = {one.request.stream_id: one for one in placed}
    parts = []
    while by_id:
        streams = [one.placed for one in by_id.values()]
        found = component(streams, streams[0].stream_id)
        names = {stream.stream_id for stream in found}
        parts.append([one for name, one in by_id.items() if name in names])
        by_id = {name: one for name, one in by_id.items() if name not in names}
    return parts


def _most_verified(admission: Admission, placed: Sequence[Admitted]) -> int:
    """The largest n so that the first n streams keep their SLO together in the full simulation."""

    def kept(count: int) -> bool:
        streams = [
            replace(stream_of(one, admission), open_s=phase(i) * 1.6)
            for i, one in enumerate(placed[:count])
        ]
        stretch = 1.0 + admission.policy.shared_overhead
        return _kept(streams, admission, stretch)

    if not placed or kept(len(placed)):
        return len(placed)
    low, high = 0, len(placed)
    while high - low > 1:
        middle = (low + high) // 2
        if kept(middle):
            low = middle
        else:
            high = middle
    return low


def _kept(streams: Sequence[SimStream], admission: Admission, stretch: float) -> bool:
    """No chunk late and none dropped, once every stream's pacer has settled.

    `stretch` lengthens every task.
    """
    profile = next(iter(admission.models.values()))
    period_s = streams[0].period_s
    assert period_s is not None
    responses = [s.expected_response_s or 0.0 for s in streams]
    settle = 6
    warmup_s = max(responses) * 1.5 + (settle + 2) * period_s
    simulator = Simulator(
        Scenario(
            pool=admission.pool,
            costs={
                block: {n: s * stretch for n, s in cost.p50_s.items()}
                for block, cost in enumerate(profile.block_costs)
            },
            streams=tuple(replace(s, first_responses=settle) for s in streams),
            end_s=warmup_s + _PERIODS * period_s,
            max_batch=admission.policy.max_batch,
            eager_batching=admission.policy.eager_batching,
            noise=_NOISE,
            record_tasks=0,
        )
    )
    simulator.run()
    for trace in simulator.traces:
        if trace.dropped:
            return False
        for chunk in trace.chunks:
            if chunk.release_s < warmup_s or chunk.deadline_s > simulator.scenario.end_s:
                continue
            if not chunk.exit_s <= chunk.deadline_s:
                return False
    return True
