"""ROS domains: which numbers are valid, and which are not in use on this machine. No ROS needed.

`python -m physis_ros.domain` prints a free one, for runs that must not hear each other.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping

from physis_core.types import UserError

# DDS derives ports from the domain, and a port has 16 bits: 7400 + 250 * 232 is the last.
LAST_VALID = 232
# Up to here a domain's ports lie below those that Linux gives to other programs (32768 and up).
LAST_SAFE = 101
_PARTICIPANTS_PROBED = 8


def domain_of(environment: Mapping[str, str]) -> int:
    """Return ROS_DOMAIN_ID of an environment (0 where it is not set), or refuse it by name."""
    text = environment.get("ROS_DOMAIN_ID", "").strip()
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise UserError("ROS_DOMAIN_ID", text, f"must be a whole number from 0 to {LAST_VALID}")
    domain = int(text)
    if domain > LAST_VALID:
        raise UserError("ROS_DOMAIN_ID", text, f"must be from 0 to {LAST_VALID}")
    return domain


def is_free(domain: int) -> bool:
    """Whether the unicast ports of the domain's first participants can be bound."""
    for participant in range(_PARTICIPANTS_PROBED):
        for offset in (10, 11):
            port = 7400 + 250 * domain + offset + 2 * participant
            if port > 65535:
                return True
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    return False
    return True


def free_domain(seed: int) -> int:
    """Return a free domain; where the search begins depends on the seed."""
    domains = list(range(1, LAST_SAFE + 1))
    random.Random(seed).shuffle(domains)
    for domain in domains:
        if is_free(domain):
            return domain
    raise UserError("ROS_DOMAIN_ID", "free", f"every domain from 1 to {LAST_SAFE} is in use here")


if __name__ == "__main__":
    print(free_domain(os.getpid()))
