"""Why nothing is played, in one line: what was refused lately, else for how long nothing has come.

Pure; times are steady seconds.
"""

from __future__ import annotations


class StreamReason:
    """`recent_s`: a refusal is the reason for so long. After that it is that nothing comes, and the
    refusal is only the last that was heard."""

    def __init__(self, recent_s: float) -> None:
        self._recent_s = recent_s
        self._came_s: float | None = None
        self._refusal = ""
        self._refused_s = 0.0

    def accepted(self, now_s: float) -> None:
        """A chunk came and is good."""
        self._came_s = now_s
        self._refusal = ""

    def refused(self, reason: str, now_s: float) -> None:
        """A chunk came and is not played."""
        self._came_s = now_s
        self._refusal, self._refused_s = reason, now_s

    def emptied(self, reason: str, now_s: float) -> None:
        """What was good is so no longer."""
        self._refusal, self._refused_s = reason, now_s

    def line(self, now_s: float) -> str:
        """For a person."""
        if self._refusal and now_s - self._refused_s <= self._recent_s:
            return self._refusal
        silence = "no chunk yet"
        if self._came_s is not None:
            silence = f"no chunk for {now_s - self._came_s:.1f} s"
        return f"{silence}; the last word: {self._refusal}" if self._refusal else silence
