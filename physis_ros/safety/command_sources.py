"""Which command source is active: the one of highest priority heard within its timeout.

A teleoperator pre-empts the model by sending commands, and hands back when it stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`priority`: larger pre-empts smaller. `timeout_s`: the source is inactive after this
    silence."""

    priority: int
    timeout_s: float


class CommandSources:
    """Times are seconds of a steady clock."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        priorities = [source.priority for source in sources.values()]
        if len(set(priorities)) != len(priorities):
            raise UserError("sources", dict(sources), "each source needs its own priority")
        self._sources = dict(sources)
        self._heard_s: dict[str, float] = {}

    def active(self, now_s: float) -> str | None:
        """The name of the active source; None where all are silent."""
        alive = [
            name
            for name, heard_s in self._heard_s.items()
            if now_s - heard_s <= self._sources[name].timeout_s
        ]
        return max(alive, key=lambda name: self._sources[name].priority, default=None)

    def preempted_by(self, name: str, now_s: float) -> str:
        """The name of the source that pre-empts `name` now; empty where it may command."""
        holder = self.active(now_s)
        if holder is None or self._sources[holder].priority <= self._sources[name].priority:
            return ""
        return holder

    def heard(self, name: str, now_s: float) -> None:
        self._heard_s[name] = now_s

    def timeout_s(self, name: str) -> float:
        return self._sources[name].timeout_s

    def forget_all(self) -> None:
        self._heard_s.clear()
