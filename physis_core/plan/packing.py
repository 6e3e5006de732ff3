"""The most streams that fit in a pool when all are known in advance: admission in many orders.

Streams that arrive one by one are admitted in that order. Before anything runs, the order can be
chosen, and it decides how well whole streams fit together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from physis_core.deployment.profile import ModelProfile
from physis_core.deployment.topology import Pool
from physis_core.plan.admission import Admission
from physis_core.plan.placement.search import Fit
from physis_core.plan.requests import AdmissionPolicy, Admitted, StreamRequest
from physis_core.types import Refused


def pack(
    pool: Pool,
    models: Mapping[str, ModelProfile],
    policy: AdmissionPolicy,
    requests: Sequence[StreamRequest],
    *,
    attempts: int = 32,
) -> Admission:
    """The best of several attempts, which differ in order and in the grouping tried first.

    Orders: as given, small before large, and random ones near that. More important streams always
    come first. Deterministic.
    """
    random = np.random.default_rng([0, 5])
    sizes = {r.stream_id: _size(r, models[r.model], pool) for r in requests}
    best: Admission | None = None
    for number in range(max(2, attempts)):
        # One model's groupings are tried in turn; several models' in random combinations.
        preferred = {
            name: number % policy.groupings
            if len(models) == 1
            else int(random.integers(policy.groupings))
            for name in models
        }
        wobble = {r.stream_id: float(random.lognormal(0.0, 0.35)) for r in requests}
        order = sorted(
            requests,
            key=lambda r: (
                -r.priority,
                0.0
                if number == 0
                else sizes[r.stream_id] * (1.0 if number % 2 else wobble[r.stream_id]),
            ),
        )
        # Half of the attempts spread a stream's ranks, so that streams share weights.
        fit: Fit = "best" if number < 2 + attempts // 2 else "spread"
        admission = Admission(
            pool,
            models,
            replace(policy, fit=fit, nodes=400),
            preferred={} if number < 2 else preferred,
            planners={} if best is None else best.planners,
        )
        for request in order:
            outcome = admission.request(request)
            if policy.stop_at_refusal and isinstance(outcome, Refused):
                break
        if best is None or _worth(admission) > _worth(best):
            best = admission
        if len(best.admitted) == len(requests):
            break
    assert best is not None
    return best


def _worth(admission: Admission) -> tuple[int, ...]:
    """Admitted streams by falling priority."""
    by_priority: dict[int, int] = {}
    for one in admission.admitted.values():
        assert isinstance(one, Admitted)
        by_priority[one.request.priority] = by_priority.get(one.request.priority, 0) + 1
    return tuple(count for _, count in sorted(by_priority.items(), reverse=True))


def _size(request: StreamRequest, profile: ModelProfile, pool: Pool) -> float:
    """Share of one device that a stream takes, of the resource that it takes most of."""
    stages = range(profile.graph.stages)
    table = profile.table()
    seconds = sum(table.predict_s(stage % profile.blocks, 1) for stage in stages)
    memory = profile.stream_kv_bytes + 0.5 * profile.weight_bytes
    return max(seconds / request.slo.period_s, memory / pool.memory_bytes)
