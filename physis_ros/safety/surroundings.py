"""What must be right around the safety controller: its topic and the trajectory controller.

Pure: facts in, one line for each problem out. What is not known is no problem; `unknown` names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFacts:
    """Facts about the controller behind our topic; None: not known.

    `publishers`: full names of the other nodes that publish on `topic`. `state`: of the controller,
    as its controller manager calls it. `joints` and `interpolates`: its parameters `joints` and
    `interpolate_from_desired_state`.
    """

    topic: str = ""
    publishers: tuple[str, ...] = ()
    state: str | None = None
    joints: tuple[str, ...] | None = None
    interpolates: bool | None = None


def problems(facts: ControllerFacts, joints: Sequence[str], *, positions: bool) -> tuple[str, ...]:
    """What stands against commanding `joints`. `positions`: the controller takes bare positions, so
    the order of its joints matters, and nothing is interpolated."""
    found = [f"{name} publishes on {facts.topic}, too" for name in facts.publishers]
    if facts.state not in (None, "active"):
        found.append(f"controller of {facts.topic}: {facts.state}, must be active")
    if facts.joints is not None:
        found.extend(_joint_problems(facts.joints, joints, positions))
    if facts.interpolates is False and not positions:
        found.append(
            "controller: interpolate_from_desired_state is false, must be true: each message would "
            "restart from the measured state"
        )
    return tuple(found)


def _joint_problems(theirs: Sequence[str], ours: Sequence[str], positions: bool) -> list[str]:
    if positions:
        if list(theirs) == list(ours):
            return []
        return [f"controller: joints {', '.join(theirs)}; ours are {', '.join(ours)}, in order"]
    missing = [name for name in ours if name not in theirs]
    extra = [name for name in theirs if name not in ours]
    found = [f"controller: has no joint {name}" for name in missing]
    found.extend(f"controller: its joint {name} is not one of ours" for name in extra)
    return found


def unknown(facts: ControllerFacts, *, positions: bool) -> str:
    """One line that names what could not be checked; empty where all was."""
    parts = {
        "whether it is active": facts.state,
        "its joints": facts.joints,
        "interpolate_from_desired_state": True if positions else facts.interpolates,
    }
    names = [name for name, value in parts.items() if value is None]
    return f"not checked of the controller: {', '.join(names)}" if names else ""


def state_of(controller: str, listed: Sequence[tuple[str, str]]) -> str:
    """Its state among (name, state) of a controller manager."""
    return dict(listed).get(controller, "not loaded")
