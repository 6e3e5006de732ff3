"""What `physis up` says between the start and the first motion, from the nodes' own lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from physis_ros.node.waiting import WaitNotice
from physis_ros.stack.supervisor import Event

ACTIVE = ": active"
"""A node begins to work (`physis_ros.node.base.ACTIVE`)."""
FIRST_TRAJECTORY = ": first trajectory"
"""safety_node has forwarded its first command (`physis_ros.safety.output`)."""
WAITS = ": waits for "
SAFETY = "safety_node"


class StartProgress:
    """Names the nodes that are not active yet, then why no trajectory came."""

    def __init__(self, processes: Sequence[str], *, after_s: float = 5.0) -> None:
        self._starting = list(processes)
        self._still = [name for name in processes if name.rpartition("/")[2] == SAFETY]
        self._waits: dict[str, str] = {}
        self._start = WaitNotice(after_s=after_s)
        self._motion = WaitNotice(after_s=after_s)
        self._begun_s: float | None = None
        self._all_active = False

    def take(self, event: Event) -> None:
        if event.kind == "line":
            if event.text.endswith(ACTIVE):
                self._drop(self._starting, event.process)
            elif FIRST_TRAJECTORY in event.text:
                self._drop(self._still, event.process)
            elif WAITS in event.text:
                self._waits[event.process] = event.text.partition(WAITS)[2]
        elif event.kind in ("exited", "failure"):
            # The supervisor says what becomes of it.
            self._waits.pop(event.process, None)

    def look(self, now_s: float) -> str:
        """A line to print now; empty for none."""
        if self._begun_s is None:
            self._begun_s = now_s
        if self._starting:
            return self._start.look(f"{', '.join(self._starting)} to become active", now_s)
        if not self._all_active:
            self._all_active = True
            return f"all nodes are active after {now_s - self._begun_s:.1f} s"
        if not self._still:
            return ""
        robots = ", ".join(self._still)
        because = "; ".join(f"{name} waits for {text}" for name, text in self._waits.items())
        return self._motion.look(
            f"the first trajectory of {robots}" + (f" ({because})" if because else ""), now_s
        )

    @staticmethod
    def _drop(names: list[str], name: str) -> None:
        if name in names:
            names.remove(name)
