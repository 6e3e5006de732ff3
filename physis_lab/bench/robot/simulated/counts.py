"""What became of windows, and what safety said, as kinds that can be counted."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from physis_ros.safety.types import Decision

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?")


@dataclass(slots=True)
class LoopCounts:
    """`windows` left the buffer; `judged`: answers of safety to those that came, by kind;
    `said`: reasons of safety's verdicts, one for each change; `refused_chunks`: by the buffer."""

    windows: int = 0
    chunks: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    refused_chunks: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)


def kind_of(decision: Decision) -> str:
    """What became of a window, so that it can be counted: OK, LIMIT, `refused` for a check, or
    `held` for the reason why nothing was forwarded at all."""
    if decision.forward is not None:
        return decision.finding.verdict.name
    _, rejected, check = decision.finding.reason.partition(": rejected: ")
    if rejected:
        return f"refused: {check.partition(': ')[0]}"
    return f"held: {said(decision.finding.reason)}"


@lru_cache(maxsize=4096)
def said(reason: str) -> str:
    """A reason without joints and numbers, so that reasons can be counted."""
    parts = [part for part in reason.removeprefix("model: ").split(": ") if "_joint" not in part]
    return _NUMBER.sub("#", ": ".join(parts[:3]))
