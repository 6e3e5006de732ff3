"""Which hosts a stack may speak to: a simulated one stays on this machine unless told otherwise.

On a shared network, a simulated stack could command a robot that listens to the same topics of the
same ROS domain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from physis_ros.stack.resolution import NodeRun

RANGE = "ROS_AUTOMATIC_DISCOVERY_RANGE"
ONLY_LOCALHOST = "ROS_LOCALHOST_ONLY"
PEERS = "ROS_STATIC_PEERS"
_CHOICES = (RANGE, ONLY_LOCALHOST, PEERS)
_WITHOUT_RANGE = ("foxy", "galactic", "humble")
_SIMULATED_PARTS = ("simulated_robot",)
_SIMULATED_NODES = ("world_node",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """`environment`: variables to add for the stack's processes. `line`: what to print; may be
    empty."""

    environment: Mapping[str, str] = field(default_factory=dict)
    line: str = ""


def reach_of(runs: Sequence[NodeRun], environ: Mapping[str, str]) -> Reach:
    """Loopback for a stack with a simulated arm or a world model; nothing where the user has
    chosen, or for a stack of a real robot or of an engine alone."""
    if not any(
        run.node.part in _SIMULATED_PARTS or run.node.name in _SIMULATED_NODES for run in runs
    ):
        return Reach()
    chosen = next((name for name in _CHOICES if environ.get(name)), None)
    if chosen is not None:
        return Reach(line=f"simulated: {chosen}={environ[chosen]} decides which hosts take part")
    name, value, other = RANGE, "LOCALHOST", f"{RANGE}=SUBNET"
    if environ.get("ROS_DISTRO") in _WITHOUT_RANGE:
        name, value, other = ONLY_LOCALHOST, "1", f"{ONLY_LOCALHOST}=0"
    return Reach(
        environment={name: value},
        line=f"simulated: stays on this machine ({name}={value}); other hosts: export {other}",
    )
