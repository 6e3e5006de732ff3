"""The reports of safety_node: safety_status and /diagnostics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from physis_core.types import Percentiles
from physis_ros.node.base import ERROR, OK, WARN, Diagnosis
from physis_ros.node.metric_names import Sample
from physis_ros.node.threads import FixedRateThread
from physis_ros.safety.filter import SafetyFilter
from physis_ros.safety.output import SafetyOutput, StatusSnapshot
from physis_ros.safety.types import Finding, Verdict

_LEVELS = {Verdict.OK: OK, Verdict.LIMIT: WARN, Verdict.HOLD: WARN, Verdict.STOP: ERROR}
# Percentiles over a long window are expensive; the status needs fresh ones only this often.
_JITTER_EVERY_S = 1.0


class SafetyReport:
    """`realtime` and `memory`: why each was refused; empty where granted."""

    def __init__(self) -> None:
        self.realtime = ""
        self.memory = ""
        self._jitter: Percentiles | None = None
        self._jitter_s = 0.0

    def status(
        self,
        safety: SafetyFilter,
        finding: Finding,
        command_age_ms: float,
        loop: FixedRateThread | None,
    ) -> StatusSnapshot:
        counts = safety.counts
        return StatusSnapshot(
            fields={
                "verdict": int(finding.verdict),
                "reason": finding.reason,
                "latched": safety.latched,
                "enabled": safety.enabled,
                "source": safety.source,
                "accepted": counts.accepted,
                "limited": counts.limited,
                "rejected": counts.rejected,
                "trips": counts.trips,
                "command_age_ms": command_age_ms,
                "realtime": not self.realtime,
            },
            jitter_ms=None if loop is None else self._jitter_of(loop),
            lost_ticks=0 if loop is None else loop.timing.lost,
        )

    def diagnoses(
        self,
        safety: SafetyFilter,
        finding: Finding,
        loop: FixedRateThread,
        output: SafetyOutput,
    ) -> Sequence[Diagnosis]:
        jitter, counts = self._jitter_of(loop), safety.counts
        acked_ms = output.acknowledgement_ms()
        granted = not self.realtime and not self.memory
        return (
            Diagnosis(
                part="verdict",
                level=_LEVELS[finding.verdict],
                message=f"{finding.verdict.name}: {finding.reason}".rstrip(": "),
                values={
                    "certified": "no: keep a hardware emergency stop",
                    "latched": safety.latched,
                    "enabled": safety.enabled,
                    "source": safety.source,
                    "accepted": counts.accepted,
                    "limited": counts.limited,
                    "rejected": counts.rejected,
                    "pre-empted": counts.preempted,
                    "waited for an acknowledgement": counts.waited,
                    "trips": counts.trips,
                },
            ),
            Diagnosis(
                part="handover",
                level=WARN if safety.handover.unreachable() else OK,
                message=safety.handover.unreachable(),
                values={
                    "acknowledged after [ms]": f"p50 {acked_ms.p50:.1f}, p99 {acked_ms.p99:.1f}, "
                    f"max {acked_ms.max:.1f}, n {acked_ms.n}",
                    "safe up to [ms]": f"{1e3 * safety.config.late_s:.0f}",
                    "not acknowledged in time": safety.handover.lost,
                },
            ),
            Diagnosis(
                part="loop",
                level=OK if granted else WARN,
                message="; ".join(filter(None, (self.realtime, self.memory)))
                or "real-time priority granted, memory locked",
                values={
                    "period [ms]": f"{1e3 * loop.timing.period_s:g}",
                    "jitter [ms]": f"p50 {jitter.p50:.3f}, p99 {jitter.p99:.3f}, "
                    f"p99.9 {jitter.p999:.3f}, max {jitter.max:.3f}, n {jitter.n}",
                    "ticks": loop.timing.ticks,
                    "lost ticks": loop.timing.lost,
                },
            ),
        )

    def metrics(
        self, safety: SafetyFilter, finding: Finding, loop: FixedRateThread
    ) -> Iterator[Sample]:
        counts, timing = safety.counts, loop.timing
        for family, value in (
            ("verdict", int(finding.verdict)),
            ("latched", safety.latched),
            ("enabled", safety.enabled),
            ("trips", counts.trips),
            ("ticks", timing.ticks),
            ("lost_ticks", timing.lost),
            ("loop_jitter_seconds", timing.jitter_counts()),
        ):
            yield Sample(family=f"physis_safety_{family}", value=value)
        for verdict in ("accepted", "limited", "rejected"):
            yield Sample(
                family="physis_safety_commands",
                value=getattr(counts, verdict),
                labels={"verdict": verdict},
            )

    def _jitter_of(self, loop: FixedRateThread) -> Percentiles:
        now_s = time.monotonic()
        if self._jitter is None or now_s - self._jitter_s > _JITTER_EVERY_S:
            self._jitter, self._jitter_s = loop.timing.jitter_ms(), now_s
        return self._jitter
