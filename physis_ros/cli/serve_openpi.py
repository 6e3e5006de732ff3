"""`physis serve --openpi`: the engine behind a websocket, in this process and without ROS.

The options of the stack `engine` set the engine, as they set engine_node.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from typing import Any

from physis_core.types import UserError
from physis_ros.cli import up
from physis_ros.engine.life import start_engine
from physis_ros.engine.parameters import EngineParameters
from physis_ros.engine.served import served
from physis_ros.node.share import share_directory
from physis_ros.policies.openpi_server import ServerConfig, start_server
from physis_ros.policies.served_engine import ServedEngine
from physis_ros.policies.wire import read_key
from physis_ros.robot.policy_contract import load_policy_contract
from physis_ros.stack.description import load_stack
from physis_ros.stack.parameter_layers import OF_ROS
from physis_ros.stack.resolution import resolve

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve_openpi(args: argparse.Namespace) -> dict[str, Any]:
    """Until Ctrl-C, SIGTERM or the end of `--duration-s`."""
    host, port = _address(args.openpi)
    contract_name, args.policy_contract = args.policy_contract, ""
    contract = load_policy_contract(contract_name) if contract_name else None
    config = ServerConfig(host=host, port=port, api_key=read_key(args.api_key_file or ""))
    share = share_directory()
    (run,) = resolve(load_stack("engine", share), up.options_from(args), share)
    values = {name: one.value for name, one in run.settings.items() if name not in OF_ROS}
    params = EngineParameters(**values)
    engine = ServedEngine(served(params), contract, seed=params.seed)
    try:
        return asyncio.run(_serve(engine, config, params, args.duration_s))
    finally:
        engine.end()


async def _serve(
    engine: ServedEngine, config: ServerConfig, params: EngineParameters, duration_s: float
) -> dict[str, Any]:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # Listen first: an address that is taken is told at once, a client waits for the warm-up.
    server = await start_server(engine, config)
    try:
        await loop.run_in_executor(
            None,
            lambda: start_engine(
                engine.engine, params.start_timeout_s, stop.is_set, lambda line: _say(str(line))
            ),
        )
        engine.started.set()
        key = "with an API key" if config.api_key else "without an API key"
        _say(f"{engine.label} on openpi://{config.host}:{config.port}, {key} (Ctrl-C stops)")
        if config.host not in _LOOPBACK and not config.api_key:
            _say("whoever reaches this address moves the robot: consider --api-key-file")
        begun_s = time.monotonic()
        ends = [asyncio.create_task(event.wait()) for event in (stop, engine.failed)]
        await asyncio.wait(ends, timeout=duration_s or None, return_when=asyncio.FIRST_COMPLETED)
    except InterruptedError:
        return {"ok": True, "ran_s": 0.0}
    finally:
        server.close()
        await server.wait_closed()
    failure = engine.engine.failure or ("a worker was lost" if engine.failed.is_set() else "")
    if failure:
        _say(f"stopped: {failure}")
    return {"ok": not failure, "failure": failure, "ran_s": time.monotonic() - begun_s}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UserError("openpi", text, "must be PORT or HOST:PORT")
    return host or _LOOPBACK[0], int(port)


def _say(line: str) -> None:
    print(f"physis serve: {line}", flush=True)
