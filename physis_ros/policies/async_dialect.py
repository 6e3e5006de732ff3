"""vLLM-Omni's asynchronous session on openpi's wire, server side.

    session_start {protocol_version: 1, session_id, prompt}    -> session_started {session_epoch: 1}
    observation_real {session_id, session_epoch, observation_index, timestamp_s, robot_obs}
                                                               -> action_chunk, when it is done
    session_reset {session_id, session_epoch}                  -> session_reset_ack, the next epoch

The client goes on to send observations while chunks are under way. A message of another session or
an older epoch is answered by `error` with the code `stale_session`; so is none that was under way
at a reset: its chunk is dropped. Of `timestamp_s` the chunk says which it began with.

Source: vLLM-Omni, `vllm_omni/entrypoints/openpi/dreamzero_async_protocol.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from physis_core.decoding import Count, Part, decode
from physis_core.types import UserError
from physis_ros.policies.payload import RobotInputs, inputs_of, reply_of
from physis_ros.policies.served_engine import (
    RequestFailed,
    ServedEngine,
    ServedSession,
    lookahead_of,
)

_LOG = logging.getLogger(__name__)
Text = Annotated[str, Meta(min_length=1)]


class _Start(Part, frozen=True, kw_only=True):
    type: Literal["session_start"]
    protocol_version: Literal[1]
    session_id: Text
    prompt: str = ""


class _Reset(Part, frozen=True, kw_only=True):
    type: Literal["session_reset"]
    session_id: Text
    session_epoch: Count


class _Observed(Part, frozen=True, kw_only=True):
    """Without `robot_obs`, whose arrays no schema describes."""

    type: Literal["observation_real"]
    session_id: Text
    session_epoch: Count
    observation_index: Count
    timestamp_s: float


def is_async(request: Mapping[str, Any]) -> bool:
    return isinstance(request.get("type"), str)


class AsyncSession:
    """One connection's session. All on the server's event loop."""

    def __init__(
        self, served: ServedEngine, send: Callable[[Mapping[str, Any]], Awaitable[None]]
    ) -> None:
        self._served = served
        self._send = send
        self._session: ServedSession | None = None
        self._session_id = ""
        self._epoch = 0
        self._prompt = ""
        self._chunk_index = 0
        self._under_way: set[asyncio.Task[None]] = set()

    async def take(self, request: Mapping[str, Any]) -> None:
        try:
            await self._handle(request)
        except UserError as error:
            await self._error("invalid_field", str(error))
        except RequestFailed as error:
            await self._error("forward_failed", str(error))

    async def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._session is not None:
            await self._served.close(self._session)
            self._session = None

    async def _handle(self, request: Mapping[str, Any]) -> None:
        match request["type"]:
            case "session_start":
                start = decode(dict(request), _Start)
                if self._session is not None:
                    await self._error("session_already_started", "one session a connection")
                    return
                self._session = await self._served.open(start.session_id)
                self._session_id, self._epoch, self._prompt = start.session_id, 1, start.prompt
                await self._say("session_started")
            case "session_reset":
                reset = decode(dict(request), _Reset)
                if not await self._is_current(reset):
                    return
                await self.close()
                self._epoch += 1
                self._chunk_index = 0
                self._session = await self._served.open(self._session_id)
                await self._say("session_reset_ack")
            case "observation_real":
                observed = decode(
                    {key: value for key, value in request.items() if key != "robot_obs"}, _Observed
                )
                values = request.get("robot_obs")
                if not isinstance(values, Mapping):
                    raise UserError("robot_obs", values, "must be a mapping")
                if await self._is_current(observed):
                    self._begin(observed, values)
            case other:
                await self._error("unknown_message_type", f"type: {other!r}")

    def _begin(self, observed: _Observed, values: Mapping[str, Any]) -> None:
        assert self._session is not None, "the current session is open"
        key = self._served.contract.instruction
        if isinstance(key, str) and key not in values and self._prompt:
            values = {**values, key: self._prompt}
        inputs = inputs_of(self._served.contract, values)
        task = asyncio.create_task(
            self._answer(self._session, observed, inputs, lookahead_of(values))
        )
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(
        self,
        session: ServedSession,
        observed: _Observed,
        inputs: RobotInputs,
        lookahead_s: float | None,
    ) -> None:
        try:
            positions = await session.infer(inputs, lookahead_s)
            reply = reply_of(self._served.contract, positions, inputs.joints)
        except (UserError, RequestFailed) as error:
            await self._error("forward_failed", str(error))
            return
        except Exception:  # noqa: BLE001  a fault of ours: the log has it whole
            _LOG.exception("a request failed")
            await self._error("internal_error", "a fault of the server; its log says which")
            return
        actions = next(iter(reply.values())) if len(reply) == 1 else reply
        self._chunk_index += 1
        await self._say(
            "action_chunk",
            chunk_index=self._chunk_index,
            actions=actions if isinstance(actions, Mapping) else np.asarray(actions),
            provenance={
                "observation_index": observed.observation_index,
                "timestamp_s": observed.timestamp_s,
            },
            monitoring={},
        )

    async def _is_current(self, message: _Reset | _Observed) -> bool:
        named = (message.session_id, message.session_epoch)
        if self._session is not None and named == (self._session_id, self._epoch):
            return True
        await self._error("stale_session", f"{message.type} is not of the session in force")
        return False

    async def _say(self, kind: str, **values: Any) -> None:
        own = {"type": kind, "session_id": self._session_id, "session_epoch": self._epoch}
        await self._send({**own, **values})

    async def _error(self, code: str, message: str) -> None:
        await self._say("error", code=code, message=message)
