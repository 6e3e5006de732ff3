"""Chooses the Fast DDS profile for large messages between processes of this machine.

By default an image of 640 x 480 does not fit Fast DDS's shared memory, and one in three is lost
between two processes (docs/decisions/large-images.md). The profiles in `config/fastdds/`
give it room. Transports that the user has set are left alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

SHM = Path("/dev/shm")
SEGMENT_BYTES = 32 << 20
PROCESSES = 8
WANTED_BYTES = PROCESSES * SEGMENT_BYTES
"""Fast DDS takes the whole segment at once, for each process."""

_MODERN = "FASTDDS_DEFAULT_PROFILES_FILE"
_OLD = "FASTRTPS_DEFAULT_PROFILES_FILE"
_WITH_FAST_DDS_2 = ("humble", "iron", "jazzy")
PROFILE_VARIABLES = (_MODERN, _OLD)
_TRANSPORTS = "FASTDDS_BUILTIN_TRANSPORTS"
_RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"

_SEGMENT = re.compile(r"fastdds_[0-9a-f]{16}\Z")
_YOUNG_S = 10.0


def variable(environ: Mapping[str, str]) -> str:
    """Where this Fast DDS finds the profile: version 3 warns of the old name, 2 knows no other."""
    return _OLD if environ.get("ROS_DISTRO") in _WITH_FAST_DDS_2 else _MODERN


def profile(environ: Mapping[str, str], share: Path, *, shm: Path = SHM) -> Path | None:
    """The profile of ours that fits the discovery range; None where ours is not to be used."""
    folder = share / "config" / "fastdds"
    if not environ.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp").startswith("rmw_fastrtps"):
        return None
    if environ.get(_TRANSPORTS) or any(map(environ.get, PROFILE_VARIABLES)):
        return None
    if not shm.is_dir() or shutil.disk_usage(shm).free < WANTED_BYTES:
        return None
    reach = environ.get(_RANGE, "") or "SUBNET"
    if reach == "LOCALHOST" and not environ.get("ROS_STATIC_PEERS"):
        return folder / "loopback.xml"
    return folder / "subnet.xml" if reach == "SUBNET" else None


def with_transport(environ: Mapping[str, str], share: Path, *, shm: Path = SHM) -> dict[str, str]:
    """`environ` with the profile that fits it.

    A profile of ours that is in it already (a process of ours starts another) is chosen anew where
    the discovery range was set again since.
    """
    result = dict(environ)
    ours = {str(path) for path in (share / "config" / "fastdds").glob("*.xml")}
    if any(environ.get(name) in ours for name in PROFILE_VARIABLES):
        for name in PROFILE_VARIABLES:
            result.pop(name, None)
    chosen = profile(result, share, shm=shm)
    if chosen is not None and chosen.is_file():
        result[variable(environ)] = str(chosen)
    return result


def remove_abandoned(shm: Path = SHM) -> int:
    """Give back the segments that killed processes of this user left; returns the bytes.

    Fast DDS holds a lock on a file beside each segment as long as its process lives.
    """
    freed = 0
    for lock_path in shm.glob("fastdds_*_el"):
        segment = lock_path.with_name(lock_path.name.removesuffix("_el"))
        if not _SEGMENT.match(segment.name):
            continue
        try:
            about = lock_path.stat()
            # A process that has made the file just now may not have locked it yet.
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < _YOUNG_S:
                continue
            with lock_path.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                freed += segment.stat().st_size
                segment.unlink()
                lock_path.unlink()
        except OSError:  # locked: its process lives; or gone: another one was quicker
            continue
    return freed
