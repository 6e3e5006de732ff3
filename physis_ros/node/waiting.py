"""Says on the console what is waited for, where nothing comes for some seconds. Pure."""

from __future__ import annotations

_LONGEST_REASON = 160


def one_line(reason: str) -> str:
    """A reason for the log: on one line, and cut where it is long."""
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


class WaitNotice:
    """One line after `after_s` of waiting, then one every `again_s`, and one when it is over."""

    def __init__(self, *, after_s: float = 4.0, again_s: float = 30.0) -> None:
        self._after_s = after_s
        self._again_s = again_s
        self._since_s: float | None = None
        self._next_s = 0.0
        self._said = False

    def look(self, waits_for: str, now_s: float) -> str:
        """The line to log now; empty for none.

        Args:
            waits_for: what does not come and why, as of now; empty where nothing is waited for.
            now_s: steady time.
        """
        if not waits_for:
            since_s, said = self._since_s, self._said
            self._since_s, self._said = None, False
            return f"goes on after {now_s - since_s:.0f} s" if said and since_s is not None else ""
        if self._since_s is None:
            self._since_s = now_s
            self._next_s = now_s + self._after_s
        if now_s < self._next_s:
            return ""
        self._next_s = now_s + self._again_s
        self._said = True
        return f"waits for {now_s - self._since_s:.0f} s: {waits_for}"
