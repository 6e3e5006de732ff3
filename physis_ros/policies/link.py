"""Connections to one policy server, kept up and used: the thread `policy-link`.

The thread runs an event loop and owns the state of the requests (`requests.py`). Other threads call
`offer` and `restart`, which only put work into the loop. An error of ours ends the thread and is
handed to `failed`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from physis_ros.policies.requests import Dropped, Request, RequestConfig, Requests, retry_s
from physis_ros.policies.server_identity import changed_metadata, places_of
from physis_ros.policies.wire import (
    Connection,
    Open,
    PolicyAddress,
    Reply,
    ServerRefusal,
    WireError,
    WireOptions,
)

T = TypeVar("T")
_LONGEST_WAIT_S = 0.25
"""The loop turns at least so often; `beat` counts it."""


class LinkUser(Protocol[T]):
    """What a link calls, on its own thread."""

    def server_known(self, metadata: Mapping[str, Any]) -> str:
        """Once for each connection. Why this server is refused; empty: it is not."""

    def request_values(self, request: Request[T]) -> Mapping[str, Any]:
        """What is sent."""

    def take_reply(self, request: Request[T], reply: Mapping[str, Any], now_s: float) -> None: ...

    def server_refused(self, reason: str) -> None:
        """A request was answered by an error."""

    def restarted(self) -> None:
        """After `restart`, and when the last connection ended: what comes next is a new epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """`in_flight`: most requests at the same time on one connection; 0: what the server allows."""

    address: PolicyAddress
    options: WireOptions
    requests: RequestConfig
    connections: int = 1
    in_flight: int = 0


class PolicyLink(Generic[T]):
    """See the module's text. `state` is a line for people; empty while a server is connected."""

    def __init__(
        self,
        config: LinkConfig,
        open_connection: Open,
        user: LinkUser[T],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.requests: Requests[T] = Requests(config.requests)
        self.state = "connects"
        self.beat = 0
        self.reconnects = 0
        self._config = config
        self._open_connection = open_connection
        self._user = user
        self._failed = failed
        self._metadata: Mapping[str, Any] | None = None
        self._connections: dict[int, Connection] = {}
        self._why: dict[int, str] = {}
        self._answered: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._news = asyncio.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="policy-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close all connections; return when the thread has ended."""
        self._soon(self._end.set)
        self._thread.join()

    def offer(self, observation: T, entry_s: float) -> None:
        """Any thread. The newest observation is the one that is sent next."""

        def take() -> None:
            self.requests.offer(observation, entry_s)
            self._news.set()

        self._soon(take)

    def restart(self) -> None:
        """Any thread. Chunk ids begin anew, and replies under way are dropped."""
        self._soon(self._restart)

    def _soon(self, act: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        except Exception as error:  # noqa: BLE001  handed to the owner
            self._failed(error)
        finally:
            self._loop.close()

    async def _main(self) -> None:
        work: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._keep(number)) for number in range(self._config.connections)
        ]
        work += [asyncio.create_task(self._send_all()), asyncio.create_task(self._end.wait())]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            for connection in list(self._connections.values()):
                await connection.close()

    async def _send_all(self) -> None:
        while True:
            self.beat += 1
            now_s = time.monotonic()
            for number in self.requests.overdue(now_s):
                self._why[number] = f"no reply of {self._config.address.text} in time"
                await self._connections[number].close()
                self._lose(number)
            while (request := self.requests.poll(time.monotonic())) is not None:
                connection = self._connections[request.connection]
                try:
                    await asyncio.wait_for(
                        connection.send(self._user.request_values(request)),
                        self._config.requests.timeout_s,
                    )
                except (WireError, asyncio.TimeoutError) as error:
                    reason = f"{self._config.address.text}: {error or 'takes no request'}"
                    self._why[request.connection] = reason
                    await connection.close()
                    self._lose(request.connection)
            self._news.clear()
            wait_s = min(_LONGEST_WAIT_S, self.requests.next_s() - time.monotonic())
            try:
                await asyncio.wait_for(self._news.wait(), max(0.0, wait_s))
            except asyncio.TimeoutError:
                continue

    async def _keep(self, number: int) -> None:
        failures = 0
        while True:
            try:
                connection = await self._open_connection(self._config.address, self._config.options)
                refused = self._refusal(connection.metadata)
                if refused:
                    await connection.close()
                    raise WireError(refused)
                self._connections[number] = connection
                self.requests.connect(
                    number, places_of(connection.metadata, wanted=self._config.in_flight)
                )
                self.state = ""
                self._news.set()
                await self._receive(number, connection)
            except WireError as error:
                why = self._why.pop(number, f"{self._config.address.text}: {error}")
                self.state = why if len(self._connections) <= 1 else self.state
            self._lose(number)
            failures = 1 if number in self._answered else failures + 1
            self._answered.discard(number)
            self.reconnects += 1
            await asyncio.sleep(retry_s(failures))

    async def _receive(self, number: int, connection: Connection) -> None:
        """Until the connection ends (WireError)."""
        while True:
            try:
                reply = await connection.receive()
            except ServerRefusal as error:
                self.requests.refuse(number)
                self._user.server_refused(str(error))
            else:
                self._take(number, reply)
            self._news.set()

    def _take(self, number: int, reply: Reply) -> None:
        now_s = time.monotonic()
        found = self.requests.answer(number, reply.request_id, now_s)
        self._answered.add(number)
        if not isinstance(found, Dropped):
            self._user.take_reply(found, reply.values, now_s)

    def _lose(self, number: int) -> None:
        self._connections.pop(number, None)
        if self.requests.lose(number):
            self._restart()

    def _restart(self) -> None:
        self.requests.restart()
        self._user.restarted()

    def _refusal(self, metadata: Mapping[str, Any]) -> str:
        """Another model than before, or one that the user refuses."""
        if self._metadata is not None:
            changed = changed_metadata(self._metadata, metadata)
            if changed:
                return f"it is another server than before: {changed}; start this node anew for it"
        refused = self._user.server_known(metadata)
        if not refused:
            self._metadata = metadata
        return refused
