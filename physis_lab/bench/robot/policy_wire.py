"""`physis bench policy-wire`: what openpi's wire costs for each observation, without a model.

Client and server share one process and one event loop, so the process's CPU time is that of both
ends: request, msgpack, loopback, checks, resizing to the model's 64 x 64, reply. The server answers
with still actions. The baseline sends the same number of bytes through a bare websocket and gets
four back.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import numpy as np
from rich.console import Console
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_lab.bench.arguments import require_at_least
from physis_ros.policies.openpi_server import ServerConfig, start_server
from physis_ros.policies.openpi_wire import open_openpi
from physis_ros.policies.packing import packed
from physis_ros.policies.payload import RobotInputs, actions_of, positions_of, request_of
from physis_ros.policies.served_engine import ServedEngine
from physis_ros.policies.wire import PolicyAddress, WireOptions
from physis_ros.robot.policy_contract import PolicyContract, load_policy_contract

CONTRACTS = ("demo_arm", "droid", "aloha")
WARM_UP = 20
HOST = "127.0.0.1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=200, help="in each run")
    parser.add_argument("--repeat", type=int, default=3, help="runs behind each spread")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    require_at_least(args, requests=10, repeat=1)
    figures: dict[str, Figure] = {}
    sizes: dict[str, int] = {}
    for name in CONTRACTS:
        contract = load_policy_contract(name)
        inputs = _inputs(contract)
        sizes[name] = len(packed(request_of(contract, inputs)))
        runs = [
            asyncio.run(_both(contract, inputs, sizes[name], args.requests))
            for _ in range(args.repeat)
        ]
        for number, figure in enumerate(("cpu_ms", "cpu_ms_bare", "ms_p50", "ms_p50_bare")):
            figures[f"policy_wire.{name}_{figure}"] = repeated([r[number] for r in runs], "ms")
    print_figures("openpi's wire, both ends of one request", figures, console)
    return result(figures, {"requests": args.requests, "request_bytes": sizes})


class _StillSession:
    def __init__(self, contract: PolicyContract) -> None:
        self._contract = contract

    async def infer(self, inputs: RobotInputs, lookahead_s: float | None) -> Any:
        joints = [inputs.joints[joint] for joint in self._contract.actions.joints]
        return np.tile(joints, (self._contract.actions.horizon, 1))


class _StillEngine:
    """What the server uses of an engine."""

    def __init__(self, contract: PolicyContract) -> None:
        images = tuple(msgspec.structs.replace(image, canvas=None) for image in contract.images)
        self.contract = msgspec.structs.replace(
            contract, image_height=64, image_width=64, images=images
        )

    def bind(self) -> None: ...

    def metadata(self) -> dict[str, Any]:
        return {"model": "still"}

    async def open(self, name: str) -> _StillSession:
        return _StillSession(self.contract)

    async def close(self, session: _StillSession) -> None: ...


async def _both(
    contract: PolicyContract, inputs: RobotInputs, size: int, requests: int
) -> tuple[float, float, float, float]:
    """CPU time and p50 of the wall time of a request [ms], and of the bare websocket."""
    engine = cast(ServedEngine, _StillEngine(contract))
    server = await start_server(engine, ServerConfig(host=HOST, port=0))
    port = next(iter(server.sockets)).getsockname()[1]
    address = PolicyAddress(scheme="openpi", host=HOST, port=port)
    connection = await open_openpi(address, WireOptions())

    async def ask() -> None:
        await connection.send(request_of(contract, inputs))
        reply = await connection.receive()
        positions_of(contract, actions_of(contract, reply.values), inputs.joints)

    cpu_ms, wall_ms = await _timed(ask, requests)
    await connection.close()
    server.close()
    await server.wait_closed()
    bare_cpu_ms, bare_wall_ms = await _bare(bytes(size), requests)
    return cpu_ms, bare_cpu_ms, wall_ms, bare_wall_ms


async def _bare(data: bytes, requests: int) -> tuple[float, float]:
    async def answer(connection: ServerConnection) -> None:
        async for _ in connection:
            await connection.send(b"done")

    async with serve(answer, HOST, 0, compression=None, max_size=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://{HOST}:{port}", compression=None, max_size=None) as socket:

            async def ask() -> None:
                await socket.send(data)
                await socket.recv()

            return await _timed(ask, requests)


async def _timed(ask: Callable[[], Awaitable[None]], requests: int) -> tuple[float, float]:
    for _ in range(WARM_UP):
        await ask()
    walls_s = []
    begun_s = time.process_time()
    for _ in range(requests):
        sent_s = time.perf_counter()
        await ask()
        walls_s.append(time.perf_counter() - sent_s)
    cpu_s = time.process_time() - begun_s
    return 1e3 * cpu_s / requests, 1e3 * float(np.median(walls_s))


def _inputs(contract: PolicyContract) -> RobotInputs:
    rng = np.random.default_rng(0)
    shape = (*contract.image_size, 3)
    return RobotInputs(
        images={
            name: rng.integers(0, 256, shape, dtype=np.uint8) for name in contract.camera_names
        },
        joints=dict.fromkeys(contract.state_joints, 0.1),
        instruction="hold",
    )
