"""Runs before a node's module is imported, so it imports nothing heavy."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from pathlib import Path
from types import TracebackType

from physis_ros.node.packages import missing_package

EXIT_USER = 2


def hold_interrupts() -> None:
    """Prepare for the import of a node's module.

    Called by the `__init__` of each package with nodes. During the imports, which take seconds,
    Ctrl-C would end in a traceback; it stays pending until main() in process.py handles it. A
    package that is not installed ends the node with one line.
    """
    if sys.argv[0] == "-m":
        _prepare()


def run_node(module: str) -> None:
    """Run a node's module as the program; the installed executables call this."""
    _prepare()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def process_age_s() -> float:
    """Seconds since the kernel started this process, in steps of 10 ms."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begun_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun_s


def _prepare() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.excepthook = _name_missing_package


def _name_missing_package(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    line = missing_package(error) if isinstance(error, ModuleNotFoundError) else None
    if line is None:
        sys.__excepthook__(kind, error, trace)
        return
    print(f"{_program(trace)}: {line}", file=sys.stderr, flush=True)
    # An exception that reaches the hook ends Python with 1; nothing of ours runs yet.
    os._exit(EXIT_USER)


def _program(trace: TracebackType | None) -> str:
    """Name of the node whose module was being imported."""
    while trace is not None:
        name = Path(trace.tb_frame.f_code.co_filename).stem
        if name.endswith("_node"):
            return name
        trace = trace.tb_next
    return Path(sys.argv[0]).stem
