"""Runs processes together: starts, listens, respawns what may respawn, stops all in order.

    with Supervisor(processes) as supervisor:
        while supervisor.failure is None:
            for event in supervisor.poll(timeout_s=0.2):
                ...

One thread owns a Supervisor: it must be the thread that lives longest, because Linux ends the
children with the thread that started them (PR_SET_PDEATHSIG). Each process leads a group of its
own, so that Ctrl-C in a terminal reaches the supervisor alone and a signal of ours reaches
grandchildren.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Literal

from physis_core.types import UserError
from physis_ros.stack.parent_death import die_with_parent
from physis_ros.stack.resolution import ProcessSpec

EventKind = Literal["started", "line", "exited", "respawn", "failure"]

# A process of ours that refuses its input says so in one line and exits with this; the same
# input would be refused again.
BAD_INPUT_CODE = 2
LONGEST_LINE_BYTES = 64 * 1024
_EXIT_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a process. `code` is that of subprocess: -9 means SIGKILL."""

    kind: EventKind
    process: str
    text: str = ""
    code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """How long each signal is given before the next, stronger one."""

    interrupt_s: float = 5.0
    terminate_s: float = 3.0
    kill_s: float = 2.0


@dataclass(slots=True, kw_only=True)
class _Process:
    spec: ProcessSpec
    popen: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    failures: int = 0
    respawn_at_s: float | None = None
    ending_since_s: float | None = None
    partial: bytearray = field(default_factory=bytearray)


class Supervisor:
    """Owns a set of processes from start to stop.

    `failure` is None while all is well; else one line saying which process ended the whole and why.
    `lost`: the same by robot, of several robots, for those that ended while the others go on.
    """

    def __init__(
        self,
        processes: Sequence[ProcessSpec],
        *,
        environment: Mapping[str, str] | None = None,
        stop_times: StopTimes | None = None,
    ) -> None:
        names = [spec.name for spec in processes]
        for name in names:
            if names.count(name) > 1:
                raise UserError("process", name, "is named twice")
        self.failure: str | None = None
        self.refused = False
        self.lost: dict[str, str] = {}
        self._environment = dict(os.environ if environment is None else environment)
        self._stop_times = stop_times or StopTimes()
        self._processes = {spec.name: _Process(spec=spec) for spec in processes}
        self._selector = selectors.DefaultSelector()
        self._groups: set[int] = set()

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all; where one cannot be started, those already started are stopped again."""
        try:
            for process in self._processes.values():
                self._spawn(process)
        except BaseException:
            self.stop()
            raise

    @property
    def idle(self) -> bool:
        """True when nothing runs and nothing will be started again."""
        return not self._alive() and all(
            process.respawn_at_s is None for process in self._processes.values()
        )

    def pids(self) -> dict[str, int]:
        """Return the process ids of those that run now."""
        return {
            name: process.popen.pid
            for name, process in self._processes.items()
            if process.popen is not None
        }

    def poll(self, timeout_s: float) -> list[Event]:
        """Return what has happened; waits up to `timeout_s` for something to happen."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            now_s = time.monotonic()
            events = self._read(max(0.0, min(_EXIT_POLL_S, deadline_s - now_s)))
            events += self._reap()
            events += self._respawn_due()
            self._urge_lost()
            if events or time.monotonic() >= deadline_s:
                return events

    def stop(
        self, on_event: Callable[[Event], None] | None = None, *, first: Collection[str] = ()
    ) -> None:
        """Stop all, in order: SIGINT to each group, SIGTERM, SIGKILL, each with its own time.

        The processes named in `first` are interrupted before the others and waited for: a recorder,
        say, that should not take the stop of the rest for a part of the run. Returns when nothing
        is left; may be called again, and then does nothing.
        """
        tell = on_event or (lambda event: None)
        for process in self._processes.values():
            process.respawn_at_s = None
        times = self._stop_times
        early = [p for name, p in self._processes.items() if name in first and p.popen is not None]
        for process in early:
            self._signal_process(process, signal.SIGINT)
        deadline_s = time.monotonic() + times.interrupt_s
        while any(p.popen is not None for p in early) and time.monotonic() < deadline_s:
            for event in self._read(_EXIT_POLL_S) + self._reap(stopping=True):
                tell(event)
        for number, wait_s in (
            (signal.SIGINT, times.interrupt_s),
            (signal.SIGTERM, times.terminate_s),
            (signal.SIGKILL, times.kill_s),
        ):
            if not self._alive():
                break
            self._signal_groups(number)
            deadline_s = time.monotonic() + wait_s
            while self._alive() and time.monotonic() < deadline_s:
                for event in self._read(_EXIT_POLL_S) + self._reap(stopping=True):
                    tell(event)

    def _spawn(self, process: _Process) -> None:
        spec = process.spec
        environment = {**self._environment, "PYTHONUNBUFFERED": "1", **spec.env}
        try:
            popen = subprocess.Popen(
                spec.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
        except OSError as error:
            raise UserError(
                f"{spec.name}.command", spec.command[0], error.strerror or "cannot be started"
            ) from error
        assert popen.stdout is not None
        os.set_blocking(popen.stdout.fileno(), False)
        self._selector.register(popen.stdout, selectors.EVENT_READ, process)
        self._groups.add(popen.pid)
        process.popen = popen
        process.partial.clear()
        process.started_s = time.monotonic()

    def _read(self, timeout_s: float) -> list[Event]:
        if not self._selector.get_map():
            time.sleep(timeout_s)
            return []
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            events += self._read_stream(key.data, key.fileobj) or []  # type: ignore[arg-type]
        return events

    def _read_stream(self, process: _Process, stream: IO[bytes]) -> list[Event] | None:
        """Return the lines that one read completed: none of them yet, or None where it waits."""
        try:
            data = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        process.partial += data
        if not data:
            self._selector.unregister(stream)
            stream.close()
        *lines, rest = bytes(process.partial).split(b"\n")
        if rest and (not data or len(rest) > LONGEST_LINE_BYTES):
            lines.append(rest)
            rest = b""
        process.partial[:] = rest
        return [
            Event(kind="line", process=process.spec.name, text=line.decode(errors="replace"))
            for line in lines
        ]

    def _reap(self, *, stopping: bool = False) -> list[Event]:
        events: list[Event] = []
        for process in self._processes.values():
            popen = process.popen
            code = None if popen is None else popen.poll()
            if popen is None or code is None:
                continue
            process.popen = None
            # What the dead left behind holds the pipe open: end it, then read to the end.
            self._kill_group(popen.pid)
            events += self._drain(process, popen)
            name = process.spec.name
            events.append(Event(kind="exited", process=name, code=code, text=describe(code)))
            if not stopping:
                events += self._after_death(process, code)
        return events

    def _drain(self, process: _Process, popen: subprocess.Popen[bytes]) -> list[Event]:
        events: list[Event] = []
        while popen.stdout is not None and not popen.stdout.closed:
            read = self._read_stream(process, popen.stdout)
            if read is None:
                # Nothing more is there, and a process outside the group keeps the pipe open.
                self._selector.unregister(popen.stdout)
                popen.stdout.close()
            events += read or []
        return events

    def _after_death(self, process: _Process, code: int) -> list[Event]:
        spec = process.spec
        if process.ending_since_s is not None:
            return []
        if spec.respawn is not None and code not in (0, BAD_INPUT_CODE):
            now_s = time.monotonic()
            healthy = now_s - process.started_s >= spec.respawn.healthy_s
            process.failures = 1 if healthy else process.failures + 1
            delay_s = spec.respawn.delay_s(process.failures)
            process.respawn_at_s = now_s + delay_s
            text = f"starts again in {delay_s:.1f} s"
            return [Event(kind="respawn", process=spec.name, text=text, code=code)]
        if spec.must_live or code == BAD_INPUT_CODE:
            reason = f"{spec.name} {describe(code)}"
            if code != BAD_INPUT_CODE and self._others_than(spec.robot):
                self._end_robot(spec.robot, reason)
                reason += f"; the nodes of {spec.robot} end, the others go on"
            elif self.failure is None:
                self.failure = reason
                self.refused = code == BAD_INPUT_CODE
            return [Event(kind="failure", process=spec.name, text=reason, code=code)]
        return []

    def _others_than(self, robot: str) -> bool:
        """Whether other robots are there that nothing has ended."""
        robots = {process.spec.robot for process in self._processes.values()} - {"", robot}
        return robot != "" and bool(robots - set(self.lost))

    def _end_robot(self, robot: str, reason: str) -> None:
        self.lost.setdefault(robot, reason)
        for process in self._processes.values():
            spec = process.spec
            if spec.robot == robot and not spec.outlives_robot and process.ending_since_s is None:
                process.respawn_at_s = None
                process.ending_since_s = time.monotonic()
                self._signal_process(process, signal.SIGINT)

    def _urge_lost(self) -> None:
        times = self._stop_times
        for process in self._processes.values():
            if process.ending_since_s is None or process.popen is None:
                continue
            since_s = time.monotonic() - process.ending_since_s
            if since_s > times.interrupt_s + times.terminate_s:
                self._signal_process(process, signal.SIGKILL)
            elif since_s > times.interrupt_s:
                self._signal_process(process, signal.SIGTERM)

    @staticmethod
    def _signal_process(process: _Process, number: signal.Signals) -> None:
        if process.popen is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.popen.pid, number)

    def _respawn_due(self) -> list[Event]:
        events = []
        now_s = time.monotonic()
        for process in self._processes.values():
            if process.respawn_at_s is not None and process.respawn_at_s <= now_s:
                process.respawn_at_s = None
                self._spawn(process)
                events.append(Event(kind="started", process=process.spec.name))
        return events

    def _alive(self) -> bool:
        return any(process.popen is not None for process in self._processes.values())

    def _signal_groups(self, number: signal.Signals) -> None:
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)

    def _kill_group(self, group: int) -> None:
        """Take away what a dead process left behind, its worker processes for instance."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._groups.discard(group)


def describe(code: int) -> str:
    """Say in words how a process ended."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was ended by {name}"
    if code == BAD_INPUT_CODE:
        return "refused its input (exit code 2)"
    return f"ended with exit code {code}"
