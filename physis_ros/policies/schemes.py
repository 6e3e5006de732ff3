"""Which client speaks the wire of an address. Its package is imported only where it is used."""

from __future__ import annotations

import importlib
from typing import cast

from physis_core.types import UserError
from physis_ros.node.packages import missing_package
from physis_ros.policies.wire import Open, PolicyAddress

_CLIENTS = {
    "openpi": ("physis_ros.policies.openpi_wire", "open_openpi"),
    "gr00t": ("physis_ros.policies.gr00t_wire", "open_gr00t"),
    "cosmos+http": ("physis_ros.policies.cosmos_wire", "open_cosmos"),
}


def opener(address: PolicyAddress) -> Open:
    """What opens a connection to it.

    Raises:
        UserError: a package that this wire needs is not installed.
    """
    module, name = _CLIENTS[address.scheme]
    try:
        return cast(Open, getattr(importlib.import_module(module), name))
    except ModuleNotFoundError as error:
        line = missing_package(error)
        if line is None:
            raise
        raise UserError("policy", address.text, line) from None
