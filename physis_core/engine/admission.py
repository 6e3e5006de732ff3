"""Who decides whether a stream may open beside those that are open: the engine asks, the planner's
`LiveAdmission` answers.
"""

from __future__ import annotations

from typing import Protocol

from physis_core.engine.stream import StreamConfig
from physis_core.types import Refused


class StreamDoor(Protocol):
    """Who decides whether a stream may open beside those that are open."""

    def admit(self, config: StreamConfig) -> Refused | None:
        """None: it may, and is counted from now on. Called in the thread that opens the stream."""
        ...

    def leave(self, config: StreamConfig) -> None:
        """The stream that was admitted with this very `config` is gone. Must not wait. May be
        called twice, and for a stream that did not open in the end.
        """
        ...
