"""Print a ROS domain that nothing on this machine uses (1 to 101, those that leave room for ports).

DDS listens for discovery on UDP port 7400 + 250 * domain + 10 of the first participant: a domain
whose first ports can be bound is not in use here.
"""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 1, 101
PARTICIPANTS = 8


def is_free(domain: int) -> bool:
    for participant in range(PARTICIPANTS):
        for offset in (10, 11):
            port = 7400 + 250 * domain + offset + 2 * participant
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    return False
    return True


def free_domain(seed: int) -> int:
    """Return a free domain; the search begins at a place that depends on the seed."""
    domains = list(range(FIRST, LAST + 1))
    random.Random(seed).shuffle(domains)
    for domain in domains:
        if is_free(domain):
            return domain
    raise RuntimeError(f"every ROS domain from {FIRST} to {LAST} is in use on this machine")


if __name__ == "__main__":
    print(free_domain(os.getpid()))
