"""A ROS domain of one test, also where tests run side by side."""

from __future__ import annotations

import os

from physis_ros.node.domain import FREE_DOMAINS, choose


def free_domain() -> int:
    """One that nobody is in. Workers of pytest-xdist look among domains of their own: two that
    look at the same moment would find the same one free."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return choose({}, FREE_DOMAINS[number::workers])
