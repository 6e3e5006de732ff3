"""Where observations wait for the engine's thread: one place per stream, newest wins."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from physis_core.engine.stream import Seen
from physis_core.types import Array, ObservationStamp


class Mailbox:
    """Any thread puts, the engine's thread takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mail: dict[str, Seen] = {}
        self._next_number = 1

    def put(
        self,
        stream_id: str,
        stamp: ObservationStamp,
        entry_s: float,
        tensors: Mapping[str, Array],
    ) -> None:
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._mail[stream_id] = Seen(
                number=number, stamp=stamp, entry_s=entry_s, tensors=tensors
            )

    def take(self) -> dict[str, Seen]:
        with self._lock:
            mail, self._mail = self._mail, {}
        return mail

    def drop(self, stream_id: str) -> None:
        with self._lock:
            self._mail.pop(stream_id, None)
