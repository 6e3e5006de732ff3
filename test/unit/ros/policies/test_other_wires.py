"""The clients of GR00T's and Cosmos Policy's servers against servers of the same wires."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from physis_ros.policies.cosmos_wire import open_cosmos
from physis_ros.policies.gr00t_wire import open_gr00t
from physis_ros.policies.payload import RobotInputs, actions_of, request_of
from physis_ros.policies.wire import (
    SCHEMES,
    Connection,
    PolicyAddress,
    ServerRefusal,
    WireError,
    WireOptions,
    opener,
)
from physis_ros.robot.policy_contract import PolicyContract, load_policy_contract

OPTIONS = WireOptions(open_s=2.0, api_key="secret")


def request(contract: PolicyContract) -> dict[str, Any]:
    image = np.full((*contract.image_size, 3), 3, dtype=np.uint8)
    joints = dict.fromkeys(contract.state_joints, 0.1)
    images = dict.fromkeys(contract.camera_names, image)
    return request_of(contract, RobotInputs(images=images, joints=joints, instruction="pick"))


def npy(array: np.ndarray) -> dict[str, Any]:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": out.getvalue()}


class Gr00tServer:
    """Answers as GR00T's server does; notes the shapes of what it was sent."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}
        self._socket = zmq.Context.instance().socket(zmq.REP)
        self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            message = msgspec.msgpack.decode(self._socket.recv())
            if message["endpoint"] == "end":
                self._socket.close(linger=0)
                return
            self._socket.send(msgspec.msgpack.encode(self._answer(message)))

    def _answer(self, message: dict[str, Any]) -> Any:
        if message.get("api_token") != "secret":
            return {"error": "Unauthorized: Invalid API token"}
        if message["endpoint"] == "get_modality_config":
            modality = {"__ModalityConfig_class__": True, "as_json": {"delta_indices": [0]}}
            return {"video": modality}
        observation = message["data"]["observation"]
        for group in ("video", "state"):
            for name, value in observation[group].items():
                array = np.load(io.BytesIO(value["as_npy"]), allow_pickle=False)
                self.seen[name] = (array.dtype.str, array.shape)
        self.seen["language"] = observation["language"]
        action = {
            "joint_position": npy(np.full((1, 16, 7), 0.5, dtype=np.float32)),
            "gripper_position": npy(np.ones((1, 16, 1), dtype=np.float32)),
        }
        return [action, {}]


@pytest.fixture
def gr00t() -> Iterator[Gr00tServer]:
    server = Gr00tServer()
    yield server
    with zmq.Context.instance().socket(zmq.REQ) as end:
        end.connect(f"tcp://127.0.0.1:{server.port}")
        end.send(msgspec.msgpack.encode({"endpoint": "end"}))
        server._thread.join(5.0)
        end.close(linger=0)


def test_gr00t_is_sent_batches_and_gives_an_action(gr00t: Gr00tServer) -> None:
    contract = load_policy_contract("gr00t_droid")
    address = PolicyAddress(scheme="gr00t", host="127.0.0.1", port=gr00t.port)

    async def ask() -> dict[str, Any]:
        with pytest.raises(WireError, match="Unauthorized"):
            await open_gr00t(address, WireOptions(open_s=2.0))
        connection = await open_gr00t(address, OPTIONS)
        assert connection.metadata["video"]["as_json"] == {"delta_indices": [0]}
        await connection.send(request(contract))
        reply = await asyncio.wait_for(connection.receive(), 5.0)
        await connection.close()
        return dict(reply.values)

    actions = actions_of(contract, asyncio.run(ask()))
    assert actions[("joint_position",)].shape == (16, 7)
    assert (actions[("gripper_position",)] == 1.0).all()
    assert gr00t.seen["exterior_image_1_left"] == ("|u1", (1, 1, 180, 320, 3))
    assert gr00t.seen["joint_position"] == ("<f4", (1, 1, 7))
    assert gr00t.seen["language"] == {"annotation.language.language_instruction": [["pick"]]}


def test_an_object_array_of_a_server_is_not_loaded() -> None:
    from physis_ros.policies.gr00t_wire import _with_arrays

    out = io.BytesIO()
    np.save(out, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        _with_arrays({"__ndarray_class__": True, "as_npy": out.getvalue()})


def test_a_gr00t_server_that_is_not_there_is_named() -> None:
    address = PolicyAddress(scheme="gr00t", host="127.0.0.1", port=9)
    with pytest.raises(WireError, match=r"no answer in 0\.2 s"):
        asyncio.run(open_gr00t(address, WireOptions(open_s=0.2)))


class CosmosHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/act":
            self.send_error(404)
            return
        assert payload["primary_image"]["shape"] == [224, 224, 3]
        assert payload["proprio"]["dtype"] == "<f4"
        rows = [{"__numpy__": _row(), "dtype": "<f4", "shape": [14]}] * 50
        said: Any = {"actions": rows, "value_prediction": 0.5}
        if payload["task_description"] == "fail":
            said = "error"
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...


def _row() -> str:
    import base64

    return base64.b64encode(np.arange(14, dtype="<f4").tobytes()).decode()


def test_cosmos_is_posted_json_and_gives_rows() -> None:
    contract = load_policy_contract("cosmos_aloha")
    server = HTTPServer(("127.0.0.1", 0), CosmosHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = PolicyAddress(
        scheme="cosmos+http", host="127.0.0.1", port=server.server_port, path="/act"
    )

    async def ask() -> dict[str, Any]:
        connection: Connection = await open_cosmos(address, OPTIONS)
        for _ in range(2):
            await connection.send(request(contract))
            reply = await asyncio.wait_for(connection.receive(), 5.0)
        await connection.send({**request(contract), "task_description": "fail"})
        with pytest.raises(ServerRefusal, match="its log"):
            await asyncio.wait_for(connection.receive(), 5.0)
        await connection.close()
        lost = await open_cosmos(
            PolicyAddress(scheme="cosmos+http", host=address.host, port=address.port, path="/x"),
            OPTIONS,
        )
        await lost.send(request(contract))
        with pytest.raises(WireError, match="404"):
            await asyncio.wait_for(lost.receive(), 5.0)
        await lost.close()
        return dict(reply.values)

    try:
        found = actions_of(contract, asyncio.run(ask()))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert found[("actions",)][7].tolist() == list(range(14))
    with pytest.raises(WireError, match="refused"):
        asyncio.run(open_cosmos(address, OPTIONS))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_has_its_client(scheme: str) -> None:
    assert callable(opener(PolicyAddress(scheme=scheme, host="h", port=1)))
