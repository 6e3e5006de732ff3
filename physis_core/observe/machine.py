"""What machine a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path


def machine() -> dict[str, object]:
    """Plain facts for the `machine` entry of a report; no host name, nothing personal."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "rclpy": _version("ros-rclpy"),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not from a wheel"
