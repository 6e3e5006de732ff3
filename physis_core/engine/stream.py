"""What a caller says of a stream, and what it reads of one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from physis_core.engine.given_values import checked_condition, real_number, truth, whole_number
from physis_core.types import Percentiles, Refresh, Refused, StreamState, UserError

Release = Literal["periodic", "free", "on_observation"]
WINDOW = 4096
"""Chunks over which a stream's percentiles are taken."""
_MOST_PRIORITY = 2**20
_SECONDS = ("max_age_s", "max_action_age_s", "expected_response_s", "margin_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """How a stream is to run. Numbers may be numpy's; arrays in `condition` are copied.

    release: `periodic` lets chunk c in at r_0 + c * period_s with the newest observation; `free` as
        fast as places come free; `on_observation` once per observation (lockstep).
    max_in_flight: most chunks between entry and exit; None: what the route can keep busy.
    max_age_s: an observation older than this, counted from its entry into the engine, starts no
    chunk. max_action_age_s: caps how long the pacer may hold finished chunks.
    hold: False delivers at once and still counts misses.
    check_finite: refuse observations that hold NaN or infinity.

    Raises:
        UserError: a value is out of range, or of a type that stands for no such value.
    """

    stream_id: str
    period_s: float | None = None
    release: Release = "periodic"
    seed: int = 0
    refresh: Refresh = "entry"
    priority: int = 0
    route: int = 0
    condition: Mapping[str, Any] = field(default_factory=dict)
    max_in_flight: int | None = None
    max_age_s: float = math.inf
    max_action_age_s: float = math.inf
    expected_response_s: float = 0.0
    margin_s: float = 0.0
    hold: bool = True
    check_finite: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.stream_id, str) or not self.stream_id:
            raise UserError("stream_id", self.stream_id, "must be text, and not empty")
        for name in ("seed", "priority", "route"):
            self._set(name, whole_number(name, getattr(self, name)))
        for name in _SECONDS:
            self._set(name, real_number(name, getattr(self, name)))
        for name in ("hold", "check_finite"):
            self._set(name, truth(name, getattr(self, name)))
        if self.period_s is not None:
            self._set("period_s", real_number("period_s", self.period_s))
        if self.max_in_flight is not None:
            self._set("max_in_flight", whole_number("max_in_flight", self.max_in_flight))
            if self.max_in_flight < 1:
                raise UserError("max_in_flight", self.max_in_flight, "must be at least 1")
        self._set("condition", checked_condition(self.condition))
        if self.release not in get_args(Release):
            raise UserError("release", self.release, f"one of {', '.join(get_args(Release))}")
        if self.release == "periodic" and self.period_s is None:
            raise UserError("period_s", None, "a periodic stream needs one")
        if self.refresh not in get_args(Refresh):
            raise UserError("refresh", self.refresh, f"one of {', '.join(get_args(Refresh))}")
        if not 0 <= self.seed < 2**63:
            raise UserError("seed", self.seed, "must be in 0..2^63 - 1")
        if abs(self.priority) > _MOST_PRIORITY:
            raise UserError("priority", self.priority, "must be within 2^20 of 0")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def paced_s(self) -> float | None:
        """The period that chunks enter and leave by; None where nothing paces them."""
        return self.period_s if self.release == "periodic" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHandle:
    """An admitted stream."""

    stream_id: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFigures:
    """A snapshot. Percentiles over the newest `WINDOW` chunks, in seconds.

    `reason`: why the stream stands still, or failed. `overdue_s`: how long the most belated chunk
    in flight is past the time by which it should be done; 0: none is. `queue_s`: from the entry of
    an observation to the start of its chunk, which is the wait in the mailbox.
    """

    stream_id: str
    state: StreamState
    reason: str
    epoch: int
    released: int
    delivered: int
    dropped: int
    superseded: int
    in_flight: int
    misses: int
    overdue_s: float
    interval_s: Percentiles
    response_s: Percentiles
    queue_s: Percentiles

    @property
    def suspended(self) -> bool:
        """Stands still after a loss, for `reason`."""
        return self.state in (StreamState.SUSPENDED, StreamState.RESUMING)


class StreamAdmission(Protocol):
    """Who decides whether a stream may open beside those that are open, such as the planner's
    `LiveAdmission`.
    """

    def admit(self, config: StreamConfig) -> Refused | None:
        """None: it may, and is counted from now on. Called in the thread that opens the stream."""
        ...

    def leave(self, config: StreamConfig) -> None:
        """The stream that was admitted with this very `config` is gone. Must not wait. May be
        called twice, and for a stream that did not open in the end.
        """
        ...
