"""The environment of our ROS processes, so that nothing has to be sourced or exported before."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from physis_ros.domain import domain_from

MIDDLEWARE = "rmw_fastrtps_cpp"


def process_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a node: the caller's, with what ROS needs where it is not set.

    Raises:
        UserError: ROS_DOMAIN_ID is not a domain.
    """
    domain_from(environ)
    result = dict(environ)
    prefix = Path(sys.prefix)
    if (prefix / "share" / "ament_index").is_dir():
        parts = result.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
        if str(prefix) not in parts:
            result["AMENT_PREFIX_PATH"] = os.pathsep.join([str(prefix), *filter(None, parts)])
        # The wheels bring one middleware; a name left over from a distribution would not load.
        result.setdefault("RMW_IMPLEMENTATION", MIDDLEWARE)
    result.setdefault("RCUTILS_LOGGING_USE_STDOUT", "1")
    result.setdefault("RCUTILS_LOGGING_BUFFERED_STREAM", "0")
    # One thread per process unless the user says otherwise: the workers are the parallelism.
    result.setdefault("OMP_NUM_THREADS", "1")
    return result
