"""`physis serve --openpi` as a process, asked by our own client and by bare frames."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_serve import ROOT, free_port
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from physis_core.model.loading import load
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import describe
from physis_ros.engine.wam_codec import observation_tensors, wam_contract
from physis_ros.node.model_file import named_model
from physis_ros.policies.openpi_wire import OpenpiConnection, open_openpi
from physis_ros.policies.packing import packed, unpacked
from physis_ros.policies.payload import RobotInputs, request_of
from physis_ros.policies.wire import PolicyAddress, ServerRefusal, WireError, WireOptions
from physis_ros.robot.policy_contract import load_policy_contract

pytestmark = pytest.mark.integration
MODEL = "physis_tiny_follow"
LOOKAHEAD_S = 0.1
QUICK = ("workers=0", "devices=1", "partition=sequential", "max_batch=1")


def inputs(seed: int = 0) -> RobotInputs:
    contract = load_policy_contract("demo_arm")
    rng = np.random.default_rng(seed)
    return RobotInputs(
        images={"front": rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)},
        joints=dict(zip(contract.state_joints, (0.1, -1.2, 1.5, -1.0, -1.5, 0.0), strict=True)),
    )


def request(seed: int = 0, **more: Any) -> dict[str, Any]:
    made = request_of(load_policy_contract("demo_arm"), inputs(seed))
    return {**made, "lookahead_s": LOOKAHEAD_S, **more}


def reference(count: int) -> list[np.ndarray]:
    """What the model answers to the requests 0, 1, ... in one process, stage after stage."""
    model = named_model(MODEL)
    stream = ReferenceStream(load(model), seed=0)
    contract = wam_contract(MODEL, describe(model))
    found = []
    for seed in range(count):
        seen = inputs(seed)
        tensors = observation_tensors(
            contract,
            images=seen.images,
            joint_names=list(seen.joints),
            positions=list(seen.joints.values()),
            lookahead_s=LOOKAHEAD_S,
        )
        found.append(np.asarray(stream.run_chunk({0: tensors})["action"]))
    return found


def test_our_client_gets_the_models_own_actions(tmp_path: Path) -> None:
    port = free_port()
    key = tmp_path / "key"
    key.write_text("secret\n")
    sets = [word for setting in QUICK for word in ("--set", f"engine_node.{setting}")]
    words = ["serve", "--openpi", str(port), "--api-key-file", str(key), *sets]
    server = subprocess.Popen(
        [sys.executable, "-m", "physis_ros.cli.main", *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        # From here on it may be asked: what comes during the warm-up waits.
        _until_healthy(port)
        asyncio.run(asyncio.wait_for(_ask(port), 60.0))
        server.terminate()
        assert server.wait(30.0) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def _until_healthy(port: int) -> None:
    end_s = time.monotonic() + 60.0
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
                assert answer.status == 200
                return
        except OSError:
            assert time.monotonic() < end_s
            time.sleep(0.1)


async def _ask(port: int) -> None:
    address = PolicyAddress(scheme="openpi", host="127.0.0.1", port=port)
    with pytest.raises(WireError, match="401"):
        await open_openpi(address, WireOptions())
    options = WireOptions(api_key="secret")
    connection = await open_openpi(address, options)
    assert connection.metadata["action_horizon"] == 8
    await _check_actions(connection)
    await connection.close()
    again = await open_openpi(address, options)
    assert again.metadata == connection.metadata
    await again.close()
    headers = {"Authorization": "Api-Key secret"}
    async with connect(f"ws://127.0.0.1:{port}", additional_headers=headers) as socket:
        await _check_async(socket)
    # A message that is too long ends its connection.
    socket = await connect(f"ws://127.0.0.1:{port}", additional_headers=headers)
    await socket.recv()
    with suppress(ConnectionClosed):
        await socket.send(b"x" * (65 * 2**20))
    with pytest.raises(ConnectionClosed):
        await socket.recv()


async def _check_actions(connection: OpenpiConnection) -> None:
    expected = reference(3)
    # Several in flight, each with its name.
    for seed in range(3):
        await connection.send(request(seed, request_id=seed, session_id="a"))
        reply = await connection.receive()
        assert reply.request_id == seed
        np.testing.assert_allclose(reply.values["actions"], expected[seed], atol=1e-5)
        assert reply.values["server_timing"]["infer_ms"] > 0.0
    # What does not fit is one line, and the connection goes on.
    for wrong, line in (
        ({"prompt": "x"}, "observation/front: None: is missing"),
        ({"endpoint": "fly"}, "endpoint: 'fly': must be infer or reset"),
        (request(lookahead_s="soon"), "lookahead_s: 'soon': must be a number"),
    ):
        await connection.send(wrong)
        with pytest.raises(ServerRefusal, match=line[:20]):
            await connection.receive()
    # After a reset, and in another session, the KV is empty again.
    await connection.send({"endpoint": "reset"})
    assert (await connection.receive()).values["status"] == "reset successful"
    for session in ("a", "b"):
        await connection.send(request(0, session_id=session))
        reply = await connection.receive()
        np.testing.assert_allclose(reply.values["actions"], expected[0], atol=1e-5)


async def _check_async(socket: Any) -> None:
    """vLLM-Omni's asynchronous session."""
    await socket.recv()

    async def say(**message: Any) -> dict[str, Any]:
        await socket.send(packed(message))
        return dict(unpacked(await socket.recv()))

    start = {"type": "session_start", "protocol_version": 1, "session_id": "s", "prompt": ""}
    started = await say(**start)
    assert (started["type"], started["session_epoch"]) == ("session_started", 1)
    assert (await say(**start))["code"] == "session_already_started"
    observed = {
        "type": "observation_real",
        "session_id": "s",
        "session_epoch": 1,
        "observation_index": 7,
        "timestamp_s": 12.5,
        "robot_obs": request(0),
    }
    chunk = await say(**observed)
    assert (chunk["type"], chunk["session_epoch"], chunk["chunk_index"]) == ("action_chunk", 1, 1)
    assert chunk["provenance"] == {"observation_index": 7, "timestamp_s": 12.5}
    np.testing.assert_allclose(chunk["actions"], reference(1)[0], atol=1e-5)
    reset = await say(type="session_reset", session_id="s", session_epoch=1)
    assert (reset["type"], reset["session_epoch"]) == ("session_reset_ack", 2)
    assert (await say(**observed))["code"] == "stale_session"
    assert "session_epoch" in (await say(**{**observed, "session_epoch": "2"}))["message"]
    assert (await say(type="fly"))["code"] == "unknown_message_type"
    chunk = await say(**{**observed, "session_epoch": 2})
    assert (chunk["session_epoch"], chunk["chunk_index"]) == (2, 1)
