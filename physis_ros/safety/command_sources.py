"""Which command source controls the robot: the model, or a teleoperator who took over.

Any message of a source of higher priority takes control, also a message that is refused. Control
goes back only by `hand_back`: a teleoperator who falls silent keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """`priority`: larger pre-empts smaller. After `timeout_s` without a message the source counts
    as silent."""

    priority: int
    timeout_s: float


class CommandSources:
    """Times are seconds of a steady clock."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        priorities = [source.priority for source in sources.values()]
        if len(set(priorities)) != len(priorities):
            raise UserError("sources", dict(sources), "each source needs its own priority")
        self._sources = dict(sources)
        self._lowest = min(sources, key=lambda name: sources[name].priority)
        self._holder = self._lowest
        self._heard_s: dict[str, float] = {}

    @property
    def holder(self) -> str:
        """The source in control; the one of lowest priority (the model) at first."""
        return self._holder

    @property
    def taken_over(self) -> bool:
        """A source other than the one of lowest priority is in control."""
        return self._holder != self._lowest

    def heard(self, name: str, now_s: float) -> bool:
        """A message of `name` came, whatever it says. True where it takes control by that.

        Raises:
            KeyError: for a source that is not configured.
        """
        takes = self._sources[name].priority > self._sources[self._holder].priority
        if takes:
            self._holder = name
        self._heard_s[name] = now_s
        return takes

    def preempted_by(self, name: str) -> str:
        """The source that `name` may not command against; empty where it may command."""
        if self._sources[self._holder].priority > self._sources[name].priority:
            return self._holder
        return ""

    def hand_back(self) -> str:
        """Give control back to the model. Returns who had it; empty where the model has it."""
        holder = self._holder if self.taken_over else ""
        self._holder = self._lowest
        return holder

    def silent_s(self, now_s: float) -> float:
        """For how long a teleoperator in control has been silent beyond its timeout; else 0."""
        if not self.taken_over:
            return 0.0
        silent_s = now_s - self._heard_s[self._holder]
        return silent_s if silent_s > self._sources[self._holder].timeout_s else 0.0
