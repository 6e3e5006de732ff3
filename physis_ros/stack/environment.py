"""The environment of our ROS processes, so that nothing must be sourced or exported first."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from physis_ros.node.domain import domain_from
from physis_ros.node.share import share_directory
from physis_ros.stack.transport import with_transport

MIDDLEWARE = "rmw_fastrtps_cpp"


def process_environment(
    environ: Mapping[str, str], prefix: Path = Path(sys.prefix)
) -> dict[str, str]:
    """Return the environment for a node: the caller's, plus what ROS needs and is not set.

    If this Python has its own ROS (`make build`), a sourced distribution is removed: two of them do
    not load into one process. Otherwise nothing is removed, and messages that pip installed into
    this Python's environment are added to the distribution's paths.

    Raises:
        UserError: ROS_DOMAIN_ID is not a domain.
    """
    domain_from(environ)
    result = with_transport(environ, share_directory())
    if (prefix / "lib" / "librcl.so").is_file():
        result["AMENT_PREFIX_PATH"] = str(prefix)
        result.setdefault("RMW_IMPLEMENTATION", MIDDLEWARE)
        _keep(result, "PYTHONPATH", lambda folder: not (folder / "rclpy").is_dir())
        _keep(
            result,
            "LD_LIBRARY_PATH",
            lambda folder: prefix in folder.parents or not (folder / "librcl.so").is_file(),
        )
    elif any((prefix / "lib").glob("libphysis_ros__*")):
        # pip has put our messages here, and the distribution looks for them in its own paths.
        for name, folder in (("AMENT_PREFIX_PATH", prefix), ("LD_LIBRARY_PATH", prefix / "lib")):
            parts = [str(folder), *filter(None, [result.get(name)])]
            result[name] = os.pathsep.join(parts)
    result.setdefault("RCUTILS_LOGGING_USE_STDOUT", "1")
    result.setdefault("RCUTILS_LOGGING_BUFFERED_STREAM", "0")
    # One thread per process unless the user says otherwise: the workers are the parallelism.
    result.setdefault("OMP_NUM_THREADS", "1")
    return result


def _keep(environ: dict[str, str], name: str, wanted: Callable[[Path], bool]) -> None:
    parts = [part for part in environ.get(name, "").split(os.pathsep) if part]
    kept = [part for part in parts if wanted(Path(part))]
    if kept:
        environ[name] = os.pathsep.join(kept)
    else:
        environ.pop(name, None)
