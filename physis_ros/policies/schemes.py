"""Which client speaks the wire of an address. Its package is imported only where it is used."""

from __future__ import annotations

from physis_ros.policies.wire import Open, PolicyAddress
from physis_ros.robot.policy_contract import PolicyContract


def opener(address: PolicyAddress, contract: PolicyContract) -> Open:
    """What opens a connection to it."""
    from physis_ros.policies.openpi_wire import open_openpi

    return open_openpi
