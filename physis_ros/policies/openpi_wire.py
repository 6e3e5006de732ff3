"""A connection to a server of openpi's kind: websocket, msgpack, metadata first.

openpi, DreamZero, LingBot-VA and vLLM-Omni serve it. Replies come in order; our own server names
the request in each, so that several may be in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from physis_core.types import UserError
from physis_ros.node.waiting import one_line
from physis_ros.policies.packing import packed, unpacked
from physis_ros.policies.wire import (
    PolicyAddress,
    Reply,
    ServerRefusal,
    WireError,
    WireOptions,
)

REQUEST_ID = "request_id"
_CLOSE_S = 0.5


class OpenpiConnection:
    """See `physis_ros.policies.wire.Connection`."""

    def __init__(self, socket: ClientConnection, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self._socket = socket

    async def send(self, request: Mapping[str, Any]) -> None:
        try:
            await self._socket.send(packed(request))
        except WebSocketException as error:
            raise WireError(f"the connection ended: {error}") from None

    async def receive(self) -> Reply:
        values = await _mapping(self._socket)
        if values.get("type") == "error":
            raise ServerRefusal(one_line(str(values.get("message", values))))
        number = values.get(REQUEST_ID)
        return Reply(values=values, request_id=number if isinstance(number, int) else None)

    async def close(self) -> None:
        await self._socket.close()


async def open_openpi(address: PolicyAddress, options: WireOptions) -> OpenpiConnection:
    """Raises WireError where nobody listens, it is another protocol, or the key is refused."""
    headers = {"Authorization": f"Api-Key {options.api_key}"} if options.api_key else None
    try:
        socket = await connect(
            f"ws://{address.host}:{address.port}{address.path}",
            compression=None,
            max_size=options.most_bytes,
            open_timeout=options.open_s,
            additional_headers=headers,
            # A server that computes in its event loop answers no ping meanwhile.
            ping_interval=None,
            # One that hangs does not shake hands either.
            close_timeout=_CLOSE_S,
            proxy=None,
        )
    except (OSError, WebSocketException, TimeoutError) as error:
        raise WireError(one_line(str(error)) or type(error).__name__) from None
    try:
        metadata = await asyncio.wait_for(_mapping(socket), options.open_s)
    except (WireError, ServerRefusal, asyncio.TimeoutError) as error:
        await socket.close()
        raise WireError(f"it sends no metadata: {error or 'timeout'}") from None
    return OpenpiConnection(socket, metadata)


async def _mapping(socket: ClientConnection) -> Mapping[str, Any]:
    try:
        data = await socket.recv()
    except WebSocketException as error:
        raise WireError(f"the connection ended: {error}") from None
    if isinstance(data, str):
        # A traceback: its last line says what it was.
        raise ServerRefusal(one_line(data.strip().rpartition("\n")[2]))
    try:
        values = unpacked(data)
    except UserError as error:
        raise WireError(str(error)) from None
    if not isinstance(values, Mapping):
        # vLLM-Omni answers with the array alone.
        return {"actions": values}
    return values
