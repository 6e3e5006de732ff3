"""What `physis demo` and `physis eval --stack` share of playing a session: logs, Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from physis_core.types import UserError


class NodeLogs:
    """What each node said, in a file of its own, and the last line for the screen."""

    def __init__(self, directory: Path, console: Console | None) -> None:
        self.directory = directory
        self.last_line = ""
        self._console = console
        self._files: dict[str, Any] = {}
        self._tails: dict[str, list[str]] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def take(self, events: Any) -> None:
        for event in events:
            if event.process not in self._files:
                self._files[event.process] = (self.directory / f"{event.process}.log").open("a")
            line = event.text if event.kind == "line" else f"-- {event.kind} {event.text}"
            self._files[event.process].write(line + "\n")
            self._files[event.process].flush()
            tail = self._tails.setdefault(event.process, [])
            tail.append(line)
            del tail[:-8]
            if event.kind == "line" and event.text.strip():
                self.last_line = f"{event.process}: {event.text.strip()[-70:]}"
            if self._console is not None:
                self._console.print(f"[{event.process}] {line}", markup=False, highlight=False)

    def tail(self, process: str) -> list[str]:
        return [line for line in self._tails.get(process, []) if not line.startswith("-- ")]

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def why_it_failed(failure: str, logs: NodeLogs, *, verb: str) -> str:
    """What the process that ended the whole said last, behind why it ended.

    Raises:
        UserError: it refused its input; its own line is passed on.
    """
    said = logs.tail(failure.split()[0])
    last = said[-1] if said else "it said nothing"
    if "refused its input" in failure:
        raise UserError(verb, failure, last)
    return f"{failure}: {last}"


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the playing early; what was recorded is still reported.

    Gives a function that says whether one of them came.
    """
    seen: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
