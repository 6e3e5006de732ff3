"""A child process that does not outlive its parent, however the parent ends (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return a function for a child to call before exec: request SIGKILL when the parent dies."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            # The parent died before the request; the signal would never come.
            os._exit(1)

    return prepare
