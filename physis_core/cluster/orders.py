"""What a worker process is told when it starts, and the key by which it and the engine know each
other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from physis_core.deployment.deployment import Deployment
from physis_core.types import UserError

SHARED_AT = "physis/cluster"
"""Key of `Shared` in the engine's store."""
_SHORTEST_KEY_BYTES = 16
_Port = Annotated[int, Meta(ge=0, lt=65536)]
_Count = Annotated[int, Meta(ge=0)]
Read = TypeVar("Read")


class Shared(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all workers of an engine share: the deployment as JSON, and the port of control."""

    deployment: str
    control_port: _Port

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Shared:
        """Raises UserError where the text is something else."""
        return _decoded(text, cls)


class Orders(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker needs to know to find its place. `deployment_json` as `Deployment.to_json`.

    `far`: the engine did not start it, and may be on another host. `incarnation`: how often this
    worker was started before. Links of a later one are made when the engine says so.
    """

    deployment_json: str
    worker: _Count
    store_host: str
    store_port: _Port
    control_host: str
    control_port: _Port
    key: bytes
    link_host: str
    incarnation: _Count = 0
    far: bool = False

    @property
    def deployment(self) -> Deployment:
        """Raises UserError naming the field that does not fit."""
        return Deployment.from_json(self.deployment_json)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: bytes | str) -> Orders:
        """Raises UserError where the text is something else."""
        return _decoded(text, cls)


def _decoded(text: bytes | str, kind: type[Read]) -> Read:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        # What came may hold the key: it is not repeated.
        raise UserError("orders", "...", str(error)) from None


def shared_key(environment: Mapping[str, str]) -> bytes:
    """What engine and workers know each other by, where one does not start the other.

    Raises:
        UserError: PHYSIS_KEY is missing, or is not at least 16 bytes in hexadecimal.
    """
    text = environment.get("PHYSIS_KEY", "")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < _SHORTEST_KEY_BYTES:
        # The value is a secret: it is not repeated.
        raise UserError(
            "PHYSIS_KEY",
            "...",
            f"must hold at least {2 * _SHORTEST_KEY_BYTES} hexadecimal digits, the same everywhere",
        )
    return key
