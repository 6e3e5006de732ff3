"""A connection to a Cosmos Policy server: HTTP POST of JSON, arrays as json_numpy writes them.

The wire names no model, so a server that restarts with another one is not noticed.

Source of the wire: NVIDIA, Cosmos Policy, `cosmos_policy/experiments/robot/aloha/deploy.py`.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from physis_ros.node.waiting import one_line
from physis_ros.policies.wire import (
    PolicyAddress,
    Reply,
    ServerRefusal,
    WireError,
    WireOptions,
)

_MARK = "__numpy__"


class CosmosConnection:
    """See `physis_ros.policies.wire.Connection`. Each request waits on a thread of its own."""

    def __init__(self, address: PolicyAddress, options: WireOptions) -> None:
        self.metadata: Mapping[str, Any] = {}
        self._path = address.path or "/act"
        self._options = options
        self._http = http.client.HTTPConnection(address.host, address.port, timeout=options.open_s)
        self._under_way: asyncio.Queue[asyncio.Task[bytes]] = asyncio.Queue()

    async def connect(self) -> None:
        """Raises WireError where nobody listens."""
        try:
            await asyncio.to_thread(self._http.connect)
        except OSError as error:
            raise WireError(one_line(str(error))) from None
        # From here on `close` ends a wait, and the link knows how long it may take.
        self._http.sock.settimeout(None)

    async def send(self, request: Mapping[str, Any]) -> None:
        body = json.dumps(request, default=_as_mark).encode()
        self._under_way.put_nowait(asyncio.create_task(asyncio.to_thread(self._post, body)))

    async def receive(self) -> Reply:
        try:
            data = await (await self._under_way.get())
            values = json.loads(data, object_hook=_from_mark)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise WireError(f"the connection ended: {one_line(str(error))}") from None
        if isinstance(values, str) and values != "error":
            # Arrays that were encoded twice.
            values = json.loads(values, object_hook=_from_mark)
        if not isinstance(values, Mapping):
            raise ServerRefusal("the server answered by an error: its log says which")
        return Reply(values=values)

    async def close(self) -> None:
        if self._http.sock is not None:
            with suppress(OSError):  # it is closed already
                self._http.sock.shutdown(socket.SHUT_RDWR)
        self._http.close()

    def _post(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self._options.api_key:
            headers["Authorization"] = f"Api-Key {self._options.api_key}"
        self._http.request("POST", self._path, body, headers)
        answer = self._http.getresponse()
        data = answer.read(self._options.most_bytes + 1)
        if len(data) > self._options.most_bytes:
            raise http.client.HTTPException(f"a reply over {self._options.most_bytes} bytes")
        if answer.status != http.client.OK:
            raise http.client.HTTPException(f"HTTP {answer.status} {answer.reason}")
        return data


async def open_cosmos(address: PolicyAddress, options: WireOptions) -> CosmosConnection:
    """Raises WireError where nobody listens."""
    connection = CosmosConnection(address, options)
    await connection.connect()
    return connection


def _as_mark(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        data = base64.b64encode(value.tobytes()).decode()
        return {_MARK: data, "dtype": value.dtype.str, "shape": value.shape}
    raise TypeError(f"{type(value).__name__} has no place on this wire")


def _from_mark(value: dict[str, Any]) -> Any:
    if _MARK not in value:
        return value
    array = np.frombuffer(base64.b64decode(value[_MARK]), dtype=np.dtype(value["dtype"]))
    return array.reshape(tuple(value["shape"]))
