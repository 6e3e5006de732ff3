"""What `physis doctor` sees of a running robot: who commands its controller, who says its joints.

`physis_ros.stack.graph_probe` looks, in a process of its own; the judgement is here, and pure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from physis_ros.cli.doctor_checks import CheckResult, probe

NAME = "robot"
LISTEN_S = 3.0
_APART_RAD = 0.02


def running_robot(environment: Mapping[str, str]) -> CheckResult:
    """Look at the robot that runs in this domain now, if one does."""
    command = [sys.executable, "-m", "physis_ros.stack.graph_probe", str(LISTEN_S)]
    ok, text = probe(command, environment)
    if not ok:
        return CheckResult(name=NAME, ok=False, required=False, detail=text)
    return judged(json.loads(text))


def judged(seen: Mapping[str, Any]) -> CheckResult:
    """Pure. `seen`: `commands`, by topic its publishers; `joints`, by topic and publisher the
    positions that it said last (empty where it said nothing, or its id is not known)."""
    wrong: list[str] = []
    noted: list[str] = []
    for topic, publishers in sorted(seen["commands"].items()):
        if len(publishers) > 1:
            wrong.append(f"{topic} has {len(publishers)} publishers: {', '.join(publishers)}")
    for topic, said in sorted(seen["joints"].items()):
        names = sorted(said)
        if len(names) > 1 and not any(said.values()):
            noted.append(f"{topic} has {len(names)} publishers: {', '.join(names)}")
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                line, apart = _shared(topic, one, said[one], other, said[other])
                if line:
                    (wrong if apart else noted).append(line)
    found = wrong + noted
    count = len(seen["commands"]) + len(seen["joints"])
    quiet = f"{count} topics of a robot, each with one publisher" if count else "none runs here"
    return CheckResult(
        name=NAME,
        ok=not found,
        required=bool(wrong),
        detail="; ".join(found) or quiet,
        remedy="let one node alone publish what moves the robot, and one what says a joint"
        if found
        else "",
    )


def _shared(
    topic: str, one: str, first: Mapping[str, float], other: str, second: Mapping[str, float]
) -> tuple[str, bool]:
    """A line on the joints that both publish, and whether they disagree; empty where they share
    none."""
    joints = [name for name in first if name in second]
    if not joints:
        return "", False
    line = f"{topic}: {one} and {other} both publish {', '.join(joints)}"
    widest = max(joints, key=lambda name: abs(first[name] - second[name]))
    if abs(first[widest] - second[widest]) <= _APART_RAD:
        return line, False
    return f"{line}; {widest} is {first[widest]:.3f} and {second[widest]:.3f}", True
