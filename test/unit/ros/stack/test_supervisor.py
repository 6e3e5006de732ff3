"""Supervision, with small dummy processes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from physis_core.types import UserError
from physis_ros.stack.description import Respawn
from physis_ros.stack.resolution import ProcessSpec
from physis_ros.stack.supervisor import Event, StopTimes, Supervisor, describe

PATIENCE_S = 60.0
QUICK = StopTimes(interrupt_s=5.0, terminate_s=0.2, kill_s=5.0)
SLEEPER = "print('ready', flush=True)\nimport time\ntime.sleep(600)"
STUBBORN = (
    "import signal, time\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\n"
    "time.sleep(600)"
)


def python(name: str, code: str, **settings: object) -> ProcessSpec:
    return ProcessSpec(name=name, command=(sys.executable, "-c", code), **settings)  # type: ignore[arg-type]


def poll_until(supervisor: Supervisor, done: Callable[[list[Event]], bool]) -> list[Event]:
    events: list[Event] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while not done(events):
        assert time.monotonic() < deadline_s, events
        events += supervisor.poll(timeout_s=0.1)
    return events


def lines(events: list[Event], name: str) -> list[str]:
    return [event.text for event in events if event.kind == "line" and event.process == name]


def is_gone(pid: int) -> bool:
    """Wait for a process that is not our child; a zombie that nobody reaps counts as gone."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_lines_are_told_with_their_process_and_all_ends() -> None:
    specs = [
        python("a", "print('one'); print('two')"),
        python("b", "import sys; print('x', end='')"),
    ]
    with Supervisor(specs) as supervisor:
        events = poll_until(supervisor, lambda events: supervisor.idle)
    assert lines(events, "a") == ["one", "two"]
    assert lines(events, "b") == ["x"]
    assert [event.code for event in events if event.kind == "exited"] == [0, 0]
    assert supervisor.failure is None


def test_a_must_live_process_that_dies_is_a_failure_with_its_name() -> None:
    specs = [python("weak", SLEEPER, must_live=True), python("other", SLEEPER)]
    with Supervisor(specs, stop_times=QUICK) as supervisor:
        poll_until(supervisor, lambda e: len(lines(e, "weak")) + len(lines(e, "other")) == 2)
        pids = supervisor.pids()
        os.kill(pids["weak"], signal.SIGKILL)
        poll_until(supervisor, lambda events: supervisor.failure is not None)
        assert supervisor.failure == "weak was ended by SIGKILL"
        assert list(supervisor.pids()) == ["other"]
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_a_process_that_may_respawn_comes_back_after_a_growing_wait() -> None:
    respawn = Respawn(first_s=0.01, longest_s=0.02, healthy_s=100.0)
    spec = python("again", "import sys; print('here'); sys.exit(7)", respawn=respawn)
    with Supervisor([spec]) as supervisor:
        events = poll_until(supervisor, lambda e: len(lines(e, "again")) >= 3)
    waits = [event.text for event in events if event.kind == "respawn"]
    assert len(waits) >= 2
    assert supervisor.failure is None


def test_the_wait_doubles_up_to_the_longest() -> None:
    respawn = Respawn(first_s=0.5, longest_s=3.0)
    assert [respawn.delay_s(n) for n in (1, 2, 3, 4, 1000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("field", ["first_s", "longest_s", "healthy_s"])
def test_a_wait_that_makes_no_sense_is_refused(field: str) -> None:
    with pytest.raises(UserError, match=field):
        Respawn(**{field: -1.0})


def test_refused_input_is_not_tried_again() -> None:
    spec = python("picky", "import sys; sys.exit(2)", respawn=Respawn(first_s=0.01))
    with Supervisor([spec]) as supervisor:
        poll_until(supervisor, lambda events: supervisor.failure is not None)
        assert supervisor.failure == "picky refused its input (exit code 2)"
        assert supervisor.idle


def test_stop_is_orderly_and_a_stubborn_process_is_killed() -> None:
    polite = (
        "import signal, sys, time\n"
        "def bye(*_):\n    print('bye', flush=True)\n    sys.exit(0)\n"
        "signal.signal(signal.SIGINT, bye)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    times = StopTimes(interrupt_s=1.0, terminate_s=0.2, kill_s=10.0)
    supervisor = Supervisor(
        [python("polite", polite), python("stubborn", STUBBORN)], stop_times=times
    )
    supervisor.start()
    poll_until(supervisor, lambda e: len(lines(e, "polite")) + len(lines(e, "stubborn")) == 2)
    told: list[Event] = []
    supervisor.stop(on_event=told.append)
    codes = {event.process: event.code for event in told if event.kind == "exited"}
    assert codes == {"polite": 0, "stubborn": -signal.SIGKILL}
    assert lines(told, "polite") == ["bye"]
    supervisor.stop()


def test_what_should_stop_first_has_ended_before_the_others_are_told() -> None:
    polite = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    names = ("other", "recorder", "last")
    supervisor = Supervisor([python(name, polite) for name in names])
    supervisor.start()
    poll_until(supervisor, lambda e: sum(len(lines(e, name)) for name in names) == 3)
    told: list[Event] = []
    supervisor.stop(on_event=told.append, first=("recorder",))
    ended = [event.process for event in told if event.kind == "exited"]
    assert ended[0] == "recorder"
    assert sorted(ended) == sorted(names)


def test_what_a_dead_process_left_behind_is_taken_away() -> None:
    parent = (
        "import subprocess, sys, os\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "os._exit(1)\n"
    )
    with Supervisor([python("parent", parent)]) as supervisor:
        events = poll_until(supervisor, lambda events: supervisor.idle)
    assert is_gone(int(lines(events, "parent")[0]))


def test_nothing_is_left_when_the_supervisor_itself_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from physis_ros.stack.resolution import ProcessSpec\n"
        "from physis_ros.stack.supervisor import Supervisor\n"
        f"spec = ProcessSpec(name='child', command=(sys.executable, '-c', {STUBBORN!r}))\n"
        "supervisor = Supervisor([spec])\n"
        "supervisor.start()\n"
        "while not any(event.kind == 'line' for event in supervisor.poll(0.1)):\n    pass\n"
        "print(supervisor.pids()['child'], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as top:
        assert top.stdout is not None
        child = int(top.stdout.readline())
        top.kill()
        top.wait()
    assert is_gone(child)


def test_a_program_that_is_not_there_is_refused_and_the_others_are_stopped() -> None:
    specs = [python("first", SLEEPER), ProcessSpec(name="none", command=("/no/such/program",))]
    supervisor = Supervisor(specs, stop_times=QUICK)
    with pytest.raises(UserError, match=r"none.command: '/no/such/program'"):
        supervisor.start()
    assert supervisor.idle


def test_two_processes_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="named twice"):
        Supervisor([python("a", SLEEPER), python("a", SLEEPER)])


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    code = "import sys; sys.stdout.write('x' * 300_000); sys.stdout.flush()"
    with Supervisor([python("long", code)]) as supervisor:
        events = poll_until(supervisor, lambda events: supervisor.idle)
    assert sum(map(len, lines(events, "long"))) == 300_000
    assert len(lines(events, "long")) > 1


def two_robots() -> list[ProcessSpec]:
    return [
        python("engine", SLEEPER),
        *(
            spec
            for robot in ("left", "right")
            for spec in (
                python(f"{robot}/safety", SLEEPER, robot=robot, must_live=True),
                python(f"{robot}/buffer", SLEEPER, robot=robot, respawn=Respawn(first_s=0.01)),
                python(f"{robot}/arm", SLEEPER, robot=robot, must_live=True, outlives_robot=True),
            )
        ),
    ]


def test_of_two_robots_the_one_that_loses_what_must_live_ends_alone() -> None:
    with Supervisor(two_robots(), stop_times=QUICK) as supervisor:
        poll_until(supervisor, lambda events: sum(e.text == "ready" for e in events) == 7)
        os.kill(supervisor.pids()["left/safety"], signal.SIGKILL)
        events = poll_until(supervisor, lambda _: "left/buffer" not in supervisor.pids())
        told = [event.text for event in events if event.kind == "failure"]
        assert told == ["left/safety was ended by SIGKILL; the nodes of left end, the others go on"]
        assert not any(event.kind == "respawn" for event in events)
        assert supervisor.failure is None
        assert supervisor.lost == {"left": "left/safety was ended by SIGKILL"}
        # The arm is the robot itself: it plays what it was given to its end.
        assert set(supervisor.pids()) == {
            "engine", "left/arm", "right/safety", "right/buffer", "right/arm"
        }  # fmt: skip
        os.kill(supervisor.pids()["right/safety"], signal.SIGKILL)
        poll_until(supervisor, lambda _: supervisor.failure is not None)
        assert supervisor.failure == "right/safety was ended by SIGKILL"


def test_a_lost_robots_process_that_does_not_end_is_made_to() -> None:
    specs = [
        python("left/safety", SLEEPER, robot="left", must_live=True),
        python("left/buffer", STUBBORN, robot="left"),
        python("right/safety", SLEEPER, robot="right", must_live=True),
    ]
    times = StopTimes(interrupt_s=0.1, terminate_s=0.1, kill_s=5.0)
    with Supervisor(specs, stop_times=times) as supervisor:
        poll_until(supervisor, lambda events: sum(e.text == "ready" for e in events) == 3)
        os.kill(supervisor.pids()["left/safety"], signal.SIGKILL)
        events = poll_until(supervisor, lambda _: set(supervisor.pids()) == {"right/safety"})
        assert [e.code for e in events if e.process == "left/buffer"] == [-signal.SIGKILL]
        assert supervisor.failure is None


def test_what_the_dead_wrote_is_read_to_its_end() -> None:
    code = (
        "import fcntl, os, sys\n"
        f"fcntl.fcntl(1, {fcntl.F_SETPIPE_SZ}, 1 << 20)\n"
        "assert os.write(1, b'x' * 300_000) == 300_000\n"
    )
    with Supervisor([python("long", code)]) as supervisor:
        os.waitid(os.P_PID, supervisor.pids()["long"], os.WEXITED | os.WNOWAIT)
        events = poll_until(supervisor, lambda events: supervisor.idle)
    assert sum(map(len, lines(events, "long"))) == 300_000


def test_endings_in_words() -> None:
    assert describe(-9) == "was ended by SIGKILL"
    assert describe(2) == "refused its input (exit code 2)"
    assert describe(0) == "ended with exit code 0"
