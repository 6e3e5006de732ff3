"""A policy behind a websocket, as openpi's client and server do it, without the policy.

`python -m physis_lab.bench.nodes.websocket_bench server|client PORT FILE`, each in its own process
until SIGINT. Each message is one msgpack map, arrays as maps of bytes, dtype and shape; no
compression. The client sends two 640 x 480 images and the joints 30 times a second, waits for the
actions, and writes one row to FILE for each answer. The server answers with the actions of one
chunk at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from physis_core.observe.rowlog import RowLog
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.bench.nodes.path_bench import CAMERA_HZ, CAMERAS, COLUMNS, HEIGHT, WIDTH
from physis_ros.policies.packing import packed, unpacked

HOST = "127.0.0.1"
STEPS = 8
_CONNECT_LIMIT_S = 30.0
_CONNECT_AGAIN_S = 0.1


async def server(port: int) -> None:
    """Answer every observation with the actions of one chunk, until SIGINT or SIGTERM."""
    actions = np.tile(np.array(HOME_RAD), (STEPS, 1))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    async def answer(connection: ServerConnection) -> None:
        await connection.send(packed({}))
        with contextlib.suppress(ConnectionClosed):  # how a client leaves
            async for data in connection:
                assert isinstance(data, bytes)
                begun_s = time.monotonic()
                unpacked(data)
                spent_ms = (time.monotonic() - begun_s) * 1e3
                reply = {"actions": actions, "server_timing": {"infer_ms": spent_ms}}
                await connection.send(packed(reply))

    async with serve(answer, HOST, port, compression=None, max_size=None):
        await stop.wait()


def client(port: int, path: Path, stop: threading.Event) -> None:
    """Ask 30 times a second, one question at a time."""
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    observation: dict[str, Any] = {f"observation/{name}": pixels for name in CAMERAS}
    observation |= {"observation/joints": np.array(HOME_RAD), "prompt": "hold"}
    log = RowLog(path, COLUMNS, flush_rows=1)
    with _connected(port) as connection:
        connection.recv()
        due_s = time.monotonic()
        while not stop.is_set():
            stamp_ns = time.time_ns()
            connection.send(packed(observation))
            answer = connection.recv()
            assert isinstance(answer, bytes)
            actions = unpacked(answer)["actions"]
            assert actions.shape == (STEPS, len(HOME_RAD))
            log.append(time.time_ns(), stamp_ns, 1.0)
            due_s = max(due_s + 1.0 / CAMERA_HZ, time.monotonic())
            stop.wait(max(0.0, due_s - time.monotonic()))
    log.close()


def _connected(port: int) -> Any:
    """A connection, as soon as the server listens."""
    end_s = time.monotonic() + _CONNECT_LIMIT_S
    while True:
        try:
            return connect(f"ws://{HOST}:{port}", compression=None, max_size=None)
        except ConnectionRefusedError:
            if time.monotonic() > end_s:
                raise
            time.sleep(_CONNECT_AGAIN_S)


def main(role: str, port: int, path: str) -> int:
    if role == "server":
        asyncio.run(server(port))
        return 0
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    client(port, Path(path), stop)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
