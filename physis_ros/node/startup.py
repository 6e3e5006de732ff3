"""Runs before a node's module is imported, so it imports nothing heavy."""

import signal
import sys


def hold_interrupts() -> None:
    """Keep Ctrl-C pending while Python imports the module of a node.

    Called by the `__init__` of each package with nodes. During the imports, which take seconds,
    Ctrl-C would end in a traceback; it stays pending until main() in process.py handles it.
    """
    if sys.argv[0] == "-m":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
