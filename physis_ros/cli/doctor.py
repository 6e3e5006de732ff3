"""`physis doctor`: checks this machine and prints the remedy for what is missing or wrong."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import physis_ros
from physis_core.types import UserError
from physis_ros.cli import doctor_checks as checks
from physis_ros.cli.doctor_checks import CheckResult
from physis_ros.cli.doctor_graph import running_robot
from physis_ros.stack.environment import process_environment

SUMMARY = "check this machine; print the remedy for what is missing or wrong"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="CHECK",
        help="skip a check (may be repeated)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="CHECK",
        help="run this check alone (may be repeated), such as --only robot beside a running robot",
    )


def lock_file() -> Path | None:
    for part in physis_ros.__path__:
        path = Path(part).parent / "requirements" / "lock.txt"
        if path.is_file():
            return path
    return None


def all_checks() -> dict[str, Callable[[], CheckResult]]:
    """The checks by name; each comes after those that it depends on."""
    given = dict(os.environ)
    try:
        environment = process_environment(given)
    except UserError:
        # The domain check reports a bad value; the others run without it.
        environment = process_environment({**given, "ROS_DOMAIN_ID": ""})
    return {
        "python": checks.python_version,
        "packages": lambda: checks.pinned_packages(lock_file()),
        "messages": lambda: checks.messages(environment),
        "ros domain": lambda: checks.domain(given),
        "middleware": lambda: checks.middleware(environment),
        "shared memory": checks.shared_memory,
        "large images": lambda: checks.large_images(given),
        "dds": lambda: checks.dds(environment),
        "rendering": lambda: checks.rendering(environment),
        "torch": lambda: checks.torch_devices(environment),
        "robot": lambda: running_robot(environment),
        "real time": checks.real_time,
        "machine": checks.machine,
    }


def show(finding: CheckResult) -> None:
    mark = "ok  " if finding.ok else ("FAIL" if finding.required else "note")
    print(f"{mark}  {finding.name:<14} {finding.detail}", flush=True)
    if finding.remedy:
        print(f"      {'':<14} -> {finding.remedy}", flush=True)


def run(args: argparse.Namespace) -> dict[str, Any]:
    available = all_checks()
    for field in ("skip", "only"):
        for name in getattr(args, field):
            if name not in available:
                raise UserError(field, name, f"is none of {', '.join(available)}")
    findings = []
    for name, check in available.items():
        if name not in args.skip and name in (args.only or available):
            findings.append(check())
            show(findings[-1])
    failed = [finding.name for finding in findings if finding.required and not finding.ok]
    print(f"\n{'missing or wrong: ' + ', '.join(failed) if failed else 'this machine is ready'}")
    return {"ok": not failed, "findings": [dataclasses.asdict(item) for item in findings]}
