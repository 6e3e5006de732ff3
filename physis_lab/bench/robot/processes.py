"""Processes that the robot benchmarks start, watch and measure."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from physis_ros.stack.resolution import ProcessSpec
from physis_ros.stack.supervisor import Supervisor

_LINES_SHOWN = 20


def module_process(
    name: str,
    module: str,
    *words: str,
    must_live: bool = True,
    env: Mapping[str, str] | None = None,
) -> ProcessSpec:
    """`python -m MODULE WORDS` as a process of a supervisor."""
    command = (sys.executable, "-m", module, *words)
    return ProcessSpec(name=name, command=command, must_live=must_live, env=env or {})


class Watch:
    """Waits on supervised processes and keeps their output for the error message."""

    def __init__(self, *, poll_s: float) -> None:
        self._poll_s = poll_s
        self._output: list[str] = []

    def poll(self, supervisor: Supervisor) -> None:
        """Read output for up to `poll_s`.

        Raises:
            RuntimeError: a process that must live has ended.
        """
        for event in supervisor.poll(self._poll_s):
            if event.text:
                self._output.append(f"{event.process}: {event.text}")
        if supervisor.failure is not None:
            raise self.error(supervisor.failure)

    def until(
        self, supervisor: Supervisor, done: Callable[[], bool], what: str, limit_s: float
    ) -> None:
        """Poll until `done`.

        Raises:
            RuntimeError: a process that must live has ended, or `limit_s` is over.
        """
        end_s = time.monotonic() + limit_s
        while not done():
            self.poll(supervisor)
            if time.monotonic() > end_s:
                raise self.error(f"waited {limit_s:g} s in vain for {what}")

    def error(self, reason: str) -> RuntimeError:
        """`reason`, followed by the last lines of output."""
        return RuntimeError("\n".join([reason, *self._output[-_LINES_SHOWN:]]))


def group_cpu_s(group: int) -> float:
    """CPU time in seconds of a process group so far, over its live processes."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            # It ended meanwhile.
            continue
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
