"""What became of the last command, and how long ago: the part of a verdict that commands give.

Times are seconds of a steady clock. Pure.
"""

from __future__ import annotations

from physis_ros.safety.types import FINE, Finding, Verdict


class LastCommand:
    """`silent_after_s`: without an accepted command for longer, the verdict is HOLD."""

    def __init__(self, silent_after_s: float) -> None:
        self._silent_after_s = silent_after_s
        self._answer = Finding(verdict=Verdict.HOLD, reason="no command yet")
        self._accepted_s: float | None = None
        # The source and time of the last rejected command, until one is accepted.
        self._rejected: tuple[str, float] | None = None
        self.source = ""
        """The source of the last accepted command; empty before the first."""

    def age_s(self, now_s: float) -> float | None:
        """Since the last accepted command; None before the first."""
        return None if self._accepted_s is None else now_s - self._accepted_s

    def accepted(self, source: str, now_s: float, *, limited: str) -> Finding:
        """`limited`: what slowed it down; empty where nothing did."""
        self.source, self._accepted_s, self._rejected = source, now_s, None
        self._answer = FINE
        if limited:
            self._answer = Finding(
                verdict=Verdict.LIMIT, reason=f"{source}: slowed down: {limited}"
            )
        return self._answer

    def rejected(self, source: str, now_s: float, *, reason: str) -> Finding:
        self._rejected = source, now_s
        self._answer = Finding(verdict=Verdict.HOLD, reason=f"{source}: rejected: {reason}")
        return self._answer

    def wait(self, reason: str) -> None:
        """Whatever came before no longer counts."""
        self._rejected = None
        self._answer = Finding(verdict=Verdict.HOLD, reason=reason)

    def findings(self, now_s: float) -> tuple[Finding, ...]:
        """The last answer, and silence. A rejection that is too long ago is reported as silence."""
        age_s = self.age_s(now_s)
        if age_s is None or age_s <= self._silent_after_s:
            return (self._last(now_s),)
        silence = Finding(
            verdict=Verdict.HOLD,
            reason=f"{self.source}: no command for {age_s:.1f} s, limit {self._silent_after_s:g} s",
        )
        return self._last(now_s), silence

    def _last(self, now_s: float) -> Finding:
        if self._rejected is None:
            return self._answer
        source, rejected_s = self._rejected
        silent_s = now_s - rejected_s
        if silent_s <= self._silent_after_s:
            return self._answer
        return Finding(
            verdict=Verdict.HOLD,
            reason=f"{source}: no command for {silent_s:.1f} s, limit "
            f"{self._silent_after_s:g} s; last: {self._answer.reason}",
        )
