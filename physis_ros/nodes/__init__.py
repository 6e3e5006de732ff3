"""The nodes, one process each: `python -m physis_ros.nodes.NAME_node`."""

import signal
import sys

if sys.argv[0] == "-m":
    # Python is looking for the module that it is to run as a node. Its imports take seconds, in
    # which Ctrl-C would end in a traceback; it is kept until main() (process.py) listens.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
