"""Our engine on openpi's wire, and in vLLM-Omni's dialects of it.

`GET /healthz` answers OK. A connection first gets the server's metadata. Each binary frame is a
request (msgpack): an observation is answered by `actions` and `server_timing`; `endpoint: reset`
empties the KV; another `session_id` is another session. A text frame is an error. A request with a
`type` speaks the asynchronous dialect (`async_dialect.py`).

Sources of the wires: openpi, `src/openpi/serving/websocket_policy_server.py`; vLLM-Omni,
`vllm_omni/entrypoints/openpi/`.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from physis_core.types import UserError
from physis_ros.policies.async_dialect import AsyncSession, is_async
from physis_ros.policies.packing import packed, unpacked
from physis_ros.policies.payload import inputs_of, reply_of
from physis_ros.policies.served_engine import (
    MOST_IN_FLIGHT,
    RequestFailed,
    ServedEngine,
    ServedSession,
    lookahead_of,
)

HEALTH = "/healthz"
_INTERNAL_ERROR = 1011
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """`api_key`: empty: everybody is served. `most_bytes`: of one message."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str = ""
    most_bytes: int = 64 * 2**20


async def start_server(served: ServedEngine, config: ServerConfig) -> Server:
    """Listen. Raises UserError where the address cannot be had."""
    served.bind()
    try:
        server: Server = await serve(
            lambda connection: _Client(served, connection).run(),
            config.host,
            config.port,
            compression=None,
            max_size=config.most_bytes,
            # No web page: a browser names the page that asks.
            origins=[None],
            process_request=lambda connection, request: _admit(connection, request, config),
            # A client that waits for its robot answers no ping meanwhile.
            ping_interval=None,
        )
        return server
    except OSError as error:
        address = f"{config.host}:{config.port}"
        raise UserError("openpi", address, os.strerror(error.errno or 0)) from None


def _admit(connection: ServerConnection, request: Request, config: ServerConfig) -> Response | None:
    if request.path == HEALTH:
        return connection.respond(http.HTTPStatus.OK, "OK\n")
    if config.api_key:
        given = request.headers.get("Authorization", "")
        wanted = f"Api-Key {config.api_key}"
        if not hmac.compare_digest(given.encode(), wanted.encode()):
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "Authorization: Api-Key\n")
    return None


class _Client:
    """One connection: its session, and the answers under way, which leave in order."""

    def __init__(self, served: ServedEngine, connection: ServerConnection) -> None:
        self._served = served
        self._connection = connection
        self._session: ServedSession | None = None
        self._session_id = ""
        self._async: AsyncSession | None = None
        self._room = asyncio.Semaphore(MOST_IN_FLIGHT)
        self._last: asyncio.Task[None] | None = None
        self._total_ms: float | None = None

    async def run(self) -> None:
        metadata = self._served.metadata()
        with suppress(ConnectionClosed):  # how a client leaves
            try:
                await self._connection.send(packed(metadata))
                async for data in self._connection:
                    await self._take(data)
            finally:
                if self._last is not None:
                    self._last.cancel()
                if self._async is not None:
                    await self._async.close()
                await self._leave()

    async def _take(self, data: str | bytes) -> None:
        begun_s = time.monotonic()
        try:
            request = unpacked(data) if isinstance(data, bytes) else None
            if not isinstance(request, Mapping):
                raise UserError("request", str(data)[:60], "must be a mapping in msgpack")
            if is_async(request):
                if self._async is None:
                    self._async = AsyncSession(self._served, self._send)
                await self._async.take(request)
                return
            endpoint = request.get("endpoint", "infer")
            if endpoint == "reset":
                await self._drain()
                await self._leave()
                await self._send({"status": "reset successful"})
                return
            if endpoint != "infer":
                raise UserError("endpoint", endpoint, "must be infer or reset")
            # Not read any further while so many are under way: the client waits.
            await self._room.acquire()
            session = await self._session_of(str(request.get("session_id") or ""))
            self._last = asyncio.create_task(
                self._answer(session, request, begun_s, after=self._last)
            )
        except (UserError, RequestFailed) as error:
            await self._drain()
            await self._connection.send(f"{error}")

    async def _answer(
        self,
        session: ServedSession,
        request: Mapping[str, Any],
        begun_s: float,
        *,
        after: asyncio.Task[None] | None,
    ) -> None:
        """Infer now; send when the answer before is out."""
        reply: dict[str, Any] | str
        try:
            inputs = inputs_of(self._served.contract, request)
            infer_s = time.monotonic()
            positions = await session.infer(inputs, lookahead_of(request))
            reply = reply_of(self._served.contract, positions, inputs.joints)
            timing = {"infer_ms": 1e3 * (time.monotonic() - infer_s)}
            if self._total_ms is not None:
                timing["prev_total_ms"] = self._total_ms
            reply["server_timing"] = timing
            if "request_id" in request:
                reply["request_id"] = request["request_id"]
        except (UserError, RequestFailed) as error:
            reply = str(error)
        except Exception:  # noqa: BLE001  a fault of ours: the log has it whole, the client leaves
            _LOG.exception("a request failed")
            await self._connection.close(_INTERNAL_ERROR, "internal error")
            return
        finally:
            self._room.release()
        if after is not None:
            await after
        with suppress(ConnectionClosed):
            await self._connection.send(reply if isinstance(reply, str) else packed(reply))
        self._total_ms = 1e3 * (time.monotonic() - begun_s)

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self._connection.send(packed(message))

    async def _drain(self) -> None:
        """The answers under way leave first."""
        if self._last is not None:
            await self._last
            self._last = None

    async def _session_of(self, session_id: str) -> ServedSession:
        """The connection's session; another `session_id` begins one with empty KV."""
        if self._session is not None and session_id not in ("", self._session_id):
            await self._drain()
            await self._leave()
        if self._session is None:
            self._session = await self._served.open(session_id)
            self._session_id = session_id
        return self._session

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await self._served.close(session)
