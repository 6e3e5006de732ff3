"""What the client needs of a policy server's wire, whichever it is.

The package of a wire is imported only where that wire is used.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from physis_core.types import UserError
from physis_ros.node.packages import missing_package

_ADDRESS = re.compile(r"(?P<scheme>[a-z0-9+]+)://(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")
_CLIENTS = {
    "openpi": ("physis_ros.policies.openpi_wire", "open_openpi"),
    "gr00t": ("physis_ros.policies.gr00t_wire", "open_gr00t"),
    "cosmos+http": ("physis_ros.policies.cosmos_wire", "open_cosmos"),
}
"""By scheme: the module of its client, and what opens a connection."""
SCHEMES = tuple(_CLIENTS)


class WireError(Exception):
    """The connection does not serve any longer, in one line."""


class ServerRefusal(Exception):
    """The server answered a request by an error, in one line. The connection goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAddress:
    """`SCHEME://HOST:PORT`, and for some a path."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """`api_key`: empty: none is sent. `open_s`: longest time until the server has said what it is.
    `most_bytes`: of one message; a longer one ends the connection."""

    api_key: str = ""
    open_s: float = 10.0
    most_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """`request_id`: of the request that it answers, where the server names it."""

    values: Mapping[str, Any]
    request_id: int | None = None


class Connection(Protocol):
    """One connection. `send` and `receive` may wait in two tasks at the same time; replies come in
    the order of the requests unless they name theirs. All raise WireError where it is over."""

    metadata: Mapping[str, Any]

    async def send(self, request: Mapping[str, Any]) -> None: ...

    async def receive(self) -> Reply:
        """Raises ServerRefusal where the oldest request was answered by an error."""

    async def close(self) -> None: ...


Open = Callable[[PolicyAddress, WireOptions], Awaitable[Connection]]


def parse_address(text: str) -> PolicyAddress:
    """Raises UserError where it is none."""
    found = _ADDRESS.match(text)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise UserError("policy", text, "must be SCHEME://HOST:PORT, such as openpi://gpu:8000")
    if found["scheme"] not in SCHEMES:
        raise UserError("policy", text, f"its scheme must be one of {', '.join(SCHEMES)}")
    path = text[found.end() :]
    if path and not path.startswith("/"):
        raise UserError("policy", text, "what follows the port must begin with /")
    return PolicyAddress(
        scheme=found["scheme"], host=found["host"], port=int(found["port"]), path=path
    )


def inputs_that_are_taken(metadata: Mapping[str, Any]) -> frozenset[str]:
    """The further inputs that a server says it takes: `inputs` in its metadata."""
    named = metadata.get("inputs", ())
    if isinstance(named, Sequence) and not isinstance(named, (str, bytes)):
        return frozenset(str(name) for name in named)
    return frozenset()


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


def read_key(path: str) -> str:
    """The API key in a file: on a command line everybody would see it. Empty for no file.

    Raises:
        UserError: it cannot be read, or does not hold one line.
    """
    if not path:
        return ""
    try:
        key = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError("api_key_file", path, error.strerror or "cannot be read") from None
    if not key or "\n" in key:
        raise UserError("api_key_file", path, "must hold one line, the key")
    return key
