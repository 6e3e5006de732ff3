"""What a process asks of the operating system: real-time priority, locked and kept memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path

_DDS_BELOW = 10
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


def request_realtime(priority: int) -> str:
    """Put every thread of this process under SCHED_FIFO; threads started later inherit it.

    DDS threads get a lower priority than ours: their work comes in bursts (discovery) and must not
    delay the loop.

    Returns why it was refused; empty where it was granted.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "this system has no real-time scheduling"
    try:
        for thread in os.listdir("/proc/self/task"):
            name = Path(f"/proc/self/task/{thread}/comm").read_text()
            given = max(1, priority - _DDS_BELOW) if name.startswith("dds.") else priority
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(given))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return (
            f"SCHED_FIFO {priority} was not granted ({reason}): "
            "run as root, or give the user rtprio in /etc/security/limits.conf"
        )
    return ""


def lock_memory() -> str:
    """Keep every page of this process in memory.

    A system under memory pressure drops pages of libraries first; reading one back from disk costs
    tens of milliseconds at any priority.

    Returns why it was refused; empty where it was granted.
    """
    mlockall = getattr(ctypes.CDLL(None, use_errno=True), "mlockall", None)
    if mlockall is None:
        return "this system cannot lock memory"
    if mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return ""
    return (
        f"memory is not locked ({os.strerror(ctypes.get_errno())}): "
        "run as root, or give the user memlock in /etc/security/limits.conf"
    )


def leave_realtime() -> None:
    """Put the calling thread back under normal scheduling: heavy work must not starve others."""
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""Numbers of mallopt(3), from malloc.h."""
KEPT_BYTES = 256 << 20
LARGEST_BYTES = 32 << 20
"""glibc takes no larger threshold."""


def keep_image_memory() -> bool:
    """Keep the memory of freed images in the process for the next image.

    By default glibc returns it to the system and fetches it anew, page by page: some hundred page
    faults for each copy of each image. The cost is the memory of the largest moment.

    Returns False, and changes nothing, where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = (
        (_TRIM_THRESHOLD, KEPT_BYTES),
        (_TOP_PAD, 1 << 20),
        (_MMAP_THRESHOLD, LARGEST_BYTES),
    )
    return all(mallopt(number, value) == 1 for number, value in settings)


def give_back_memory() -> None:
    """Free what nothing uses any more, and give it to the system.

    An engine is a circle of objects that holds a model's weights. The garbage collector looks at
    old objects seldom, and never at those that were frozen at start. Freed weights then lie in the
    heaps of threads that have ended. Takes some tenths of a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)
