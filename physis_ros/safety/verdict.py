"""Verdicts, ordered OK < LIMIT < HOLD < STOP: the most severe wins, and STOP stays until it is
reset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Verdict(IntEnum):
    """The values are those of the SafetyStatus message."""

    OK = 0
    LIMIT = 1
    HOLD = 2
    STOP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's opinion at one tick, with one line that says why."""

    verdict: Verdict
    reason: str


FINE = Finding(verdict=Verdict.OK, reason="")


def most_severe(findings: Iterable[Finding]) -> Finding:
    """The first among the most severe; FINE where there is none."""
    return max(findings, key=lambda finding: finding.verdict, default=FINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetAnswer:
    done: bool
    reason: str


class StopLatch:
    """Holds the first STOP. It never opens by itself; `reset` opens it when the cause is gone and
    the
    cooldown since the last cause is over. Times are seconds of a steady clock."""

    def __init__(self, cooldown_s: float) -> None:
        self._cooldown_s = cooldown_s
        self._finding: Finding | None = None
        self._last_cause_s = 0.0

    @property
    def finding(self) -> Finding | None:
        return self._finding

    def trip(self, reason: str, now_s: float) -> bool:
        """True where this was the first cause."""
        first = self._finding is None
        if first:
            self._finding = Finding(verdict=Verdict.STOP, reason=reason)
        self._last_cause_s = now_s
        return first

    def reset(self, now_s: float, *, present_cause: str) -> ResetAnswer:
        if self._finding is None:
            return ResetAnswer(done=True, reason="nothing to reset")
        if present_cause:
            return ResetAnswer(done=False, reason=f"the cause is still there: {present_cause}")
        waited_s = now_s - self._last_cause_s
        if waited_s < self._cooldown_s:
            return ResetAnswer(
                done=False,
                reason=f"cooling down: {self._cooldown_s - waited_s:.2f} s of "
                f"{self._cooldown_s:.2f} s left",
            )
        was = self._finding.reason
        self._finding = None
        return ResetAnswer(done=True, reason=f"reset after: {was}")
