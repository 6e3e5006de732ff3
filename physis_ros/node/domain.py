"""Finds ROS domains in use on this machine: DDS does not report two stacks in one domain.

`python -m physis_ros.node.domain` prints a free one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from physis_core.types import UserError

# RTPS well-known ports (OMG DDSI-RTPS 2.3, 9.6.1.1): base 7400, 250 per domain, unicast discovery
# of participant p at offset 10 + 2 p. A participant holds its port, so a failed bind shows it.
PORT_BASE = 7400
DOMAIN_GAIN = 250
UNICAST_OFFSET = 10
PARTICIPANT_GAIN = 2
PARTICIPANTS_LOOKED_AT = 8

# Above 101 the ports run into those that Linux hands out to clients.
FREE_DOMAINS = range(42, 102)
MAX_DOMAIN_ID = 232


def domain_from(environ: Mapping[str, str]) -> int | None:
    """The domain that the user chose, or None.

    Raises:
        UserError: not an integer of 0 to 232.
    """
    text = environ.get("ROS_DOMAIN_ID", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_DOMAIN_ID):
        raise UserError("ROS_DOMAIN_ID", text, f"must be an integer from 0 to {MAX_DOMAIN_ID}")
    return int(text)


def in_use(domain: int) -> bool:
    """True if a process of this machine is in the domain."""
    first = PORT_BASE + DOMAIN_GAIN * domain + UNICAST_OFFSET
    return any(
        _held(first + PARTICIPANT_GAIN * participant)
        for participant in range(PARTICIPANTS_LOOKED_AT)
    )


def choose(environ: Mapping[str, str] = os.environ, among: Sequence[int] = FREE_DOMAINS) -> int:
    """The user's domain, refused where others are in it; else a free one of `among`.

    The search starts at a place that depends on the process id, so that runs started together
    choose different domains.

    Raises:
        UserError: the chosen domain is in use, or every domain of `among` is.
    """
    chosen = domain_from(environ)
    if chosen is not None:
        if in_use(chosen):
            raise UserError(
                "ROS_DOMAIN_ID", chosen, "other ROS nodes of this machine use it; choose another"
            )
        return chosen
    for i in range(len(among)):
        domain = among[(os.getpid() + i) % len(among)]
        if not in_use(domain):
            return domain
    looked_at = f"{among[0]}..{among[-1]}"
    raise UserError("ROS_DOMAIN_ID", None, f"no free domain of {looked_at}")


def _held(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


if __name__ == "__main__":
    print(choose())
