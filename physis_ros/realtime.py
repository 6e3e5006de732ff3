"""Real-time priority for a process, asked for and honestly reported."""

from __future__ import annotations

import os


def ask_realtime(priority: int) -> str:
    """Put every thread of this process under SCHED_FIFO; threads started later inherit it.

    Returns an empty string where it was granted, else why not, for a person to act on.
    """
    if not hasattr(os, "sched_setscheduler"):
        return "this system has no real-time scheduling"
    try:
        parameter = os.sched_param(priority)
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, parameter)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return (
            f"SCHED_FIFO {priority} was not granted ({reason}): "
            "run as root, or give the user rtprio in /etc/security/limits.conf"
        )
    return ""
