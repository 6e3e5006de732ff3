"""What happens before a node's module is imported."""

import signal
import sys


def hold_interrupts() -> None:
    """Keep Ctrl-C pending while Python imports the module that it is to run as a node.

    Called by the `__init__` of each package that holds nodes. The imports take seconds, in which
    Ctrl-C would end in a traceback; it stays pending until main() (process.py) listens.
    """
    if sys.argv[0] == "-m":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
