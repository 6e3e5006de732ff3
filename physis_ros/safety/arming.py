"""Whether the controller may pass commands on: disarmed at first, armed by a call, never by itself.

Pure. The filter tells what stands against arming; a STOP, or anything that the controller depends
on and that is no longer right, disarms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To a caller: whether it was done, and one line that says what or why not."""

    done: bool
    reason: str


class Arming:
    """`at_start`: arm once without a call, as soon as nothing stands against it. For simulated
    arms."""

    def __init__(self, *, at_start: bool) -> None:
        self._at_start = at_start
        self._waits = at_start
        self._armed = False
        self._why = ""

    @property
    def armed(self) -> bool:
        return self._armed

    @property
    def waits(self) -> bool:
        """It arms without a call as soon as nothing stands against it."""
        return self._waits

    def begin(self) -> None:
        """Start anew, disarmed, as after construction."""
        self._armed, self._waits, self._why = False, self._at_start, ""

    def update(self, against: Sequence[str]) -> None:
        """At each tick while it waits: `against` is what is not right yet."""
        if self._waits and not against:
            self._armed, self._waits, self._why = True, False, ""

    def arm(self, against: Sequence[str]) -> Answer:
        """Arm at a call, or say all that stands against it."""
        if self._armed:
            return Answer(done=True, reason="armed already")
        if against:
            return Answer(done=False, reason="not armed: " + "; ".join(against))
        self._armed, self._waits, self._why = True, False, ""
        return Answer(done=True, reason="armed")

    def disarm(self, why: str) -> bool:
        """Disarm until the next call. `why` is one line. True where it was armed."""
        was_armed = self._armed
        if was_armed or self._waits or not self._why:
            self._why = why
        self._armed = self._waits = False
        return was_armed

    def refusal(self, against: Sequence[str] = ()) -> str:
        """Why nothing is passed on, in one line; empty while armed."""
        if self._armed:
            return ""
        if self._waits:
            return "disarmed: waits for: " + ("; ".join(against) or "the next tick")
        return f"disarmed: {self._why}" if self._why else "disarmed: ~/enable arms"
