"""A connection to GR00T's policy server: ZeroMQ request and reply, msgpack, arrays as .npy bytes.

A contract names its values below `video`, `state` and `language`, as in `key: [video, ego_view]`.
Images go as [1, 1, H, W, 3], states as [1, 1, D], the instruction as [[text]]; actions come back as
[1, T, D]. The server's modality configuration stands for its metadata. No pickle: neither side
loads an object array.

Source of the wire: NVIDIA, Isaac-GR00T, `gr00t/policy/server_client.py`.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import zmq
import zmq.asyncio

from physis_ros.node.waiting import one_line
from physis_ros.policies.wire import (
    PolicyAddress,
    Reply,
    ServerRefusal,
    WireError,
    WireOptions,
)

_HEARTBEAT_MS = 1000


class Gr00tConnection:
    """See `physis_ros.policies.wire.Connection`."""

    def __init__(self, socket: zmq.asyncio.Socket, api_key: str) -> None:
        self.metadata: Mapping[str, Any] = {}
        self._socket = socket
        self._token = {"api_token": api_key} if api_key else {}

    async def send(self, request: Mapping[str, Any]) -> None:
        await self.ask("get_action", {"observation": _batched(request), "options": None})

    async def ask(self, endpoint: str, data: Mapping[str, Any] | None = None) -> None:
        """`receive` or `answer` gives what the server answers."""
        message: dict[str, Any] = {"endpoint": endpoint, **self._token}
        if data is not None:
            message["data"] = data
        try:
            await self._socket.send(msgspec.msgpack.encode(message, enc_hook=_as_npy))
        except zmq.ZMQError as error:
            raise WireError(f"the connection ended: {error}") from None

    async def receive(self) -> Reply:
        answer = await self.answer()
        # The action and further information; older servers send the action alone.
        action = answer[0] if isinstance(answer, list) and answer else answer
        if not isinstance(action, Mapping):
            raise WireError(f"a reply that is no action: {type(action).__name__}")
        return Reply(values={name: _unbatched(value) for name, value in action.items()})

    async def answer(self) -> Any:
        try:
            data = await self._socket.recv()
            answer = _with_arrays(msgspec.msgpack.decode(data)) if data != b"ERROR" else None
        except zmq.ZMQError as error:
            raise WireError(f"the connection ended: {error}") from None
        except (msgspec.DecodeError, ValueError, OSError, EOFError) as error:
            raise WireError(f"a reply that cannot be read: {one_line(str(error))}") from None
        if answer is None or (isinstance(answer, Mapping) and "error" in answer):
            raise ServerRefusal(one_line(str(answer["error"] if answer else "ERROR")))
        return answer

    async def close(self) -> None:
        self._socket.close(linger=0)


async def open_gr00t(address: PolicyAddress, options: WireOptions) -> Gr00tConnection:
    """Raises WireError where nobody answers in time, or the key is refused."""
    socket = zmq.asyncio.Context.instance().socket(zmq.REQ)
    socket.setsockopt(zmq.MAXMSGSIZE, options.most_bytes)
    # Never connected anew behind our back: it may be another model.
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    connection = Gr00tConnection(socket, options.api_key)
    try:
        socket.connect(f"tcp://{address.host}:{address.port}")
        await asyncio.wait_for(connection.ask("get_modality_config"), options.open_s)
        config = await asyncio.wait_for(connection.answer(), options.open_s)
    except (zmq.ZMQError, ServerRefusal, WireError, asyncio.TimeoutError) as error:
        await connection.close()
        raise WireError(str(error) or f"no answer in {options.open_s:g} s") from None
    connection.metadata = config if isinstance(config, Mapping) else {"modality_config": config}
    return connection


def _batched(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _batched(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return value[None, None]
    return [[value]] if isinstance(value, str) else value


def _unbatched(value: Any) -> Any:
    return value[0] if isinstance(value, np.ndarray) and value.ndim == 3 else value


def _as_npy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        out = io.BytesIO()
        np.save(out, value, allow_pickle=False)
        return {"__ndarray_class__": True, "as_npy": out.getvalue()}
    raise NotImplementedError(f"{type(value).__name__} has no place on this wire")


def _with_arrays(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_arrays(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "__ndarray_class__" in value:
        return np.load(io.BytesIO(value["as_npy"]), allow_pickle=False)
    return {name: _with_arrays(one) for name, one in value.items()}
