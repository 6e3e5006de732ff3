"""The policy node against a real websocket server that is late, cold, out of order and replaced."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_serve import free_port
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from physis_ros.msg import ActionChunk, Observation
from physis_ros.node.image_messages import rgb_to_image
from physis_ros.node.interfaces import ACTION_CHUNK, CLOSE_STREAM, OBSERVATION, OPEN_STREAM
from physis_ros.node.time_messages import ns_to_time, time_to_ns
from physis_ros.policies.packing import packed, unpacked
from physis_ros.srv import CloseStream, OpenStream

pytestmark = pytest.mark.integration

CONTRACT = """
summary: a joint that says which observation it is of
period_s: 0.05
image_height: 8
image_width: 8
images: [{camera: front, key: observation/front}]
state: [{key: state, joints: [a_joint]}]
session: session_id
actions: {horizon: 4, step_s: 0.05, parts: [{key: actions, joints: [a_joint]}]}
"""
METADATA = {
    "model": "one",
    "max_in_flight": 4,
    "inputs": ["request_id", "inference_delay", "prev_chunk_left_over"],
}
COLD_S = 0.8


class LateServer:
    """Answers in pairs, the newer request of each first; the very first answer is slow."""

    def __init__(self, port: int) -> None:
        self.metadata: dict[str, Any] = dict(METADATA)
        self.sessions: list[str] = []
        self.left: list[int] = []
        self.swapped = 0
        self._port = port
        self._cold = True
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def listen(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def hang_up(self) -> None:
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result(10)

    def end(self) -> None:
        self.hang_up()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await serve(self._answer, "127.0.0.1", self._port, compression=None)

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _answer(self, connection: ServerConnection) -> None:
        held: list[dict[str, Any]] = []
        try:
            await connection.send(packed(self.metadata))
            async for data in connection:
                request = unpacked(data)
                self.sessions.append(request["session_id"])
                assert request["inference_delay"] >= 1
                self.left.append(len(request.get("prev_chunk_left_over", ())))
                if self._cold:
                    await asyncio.sleep(COLD_S)
                    self._cold = False
                held.append(request)
                if len(held) < 2:
                    continue
                self.swapped += 1
                for late in reversed(held):
                    actions = np.tile(late["state"], (4, 1))
                    reply = {"actions": actions, "request_id": late["request_id"]}
                    await connection.send(packed(reply))
                held.clear()
        except ConnectionClosed:
            return


class Robot:
    """Observations whose joint is at 0.001 times their number."""

    def __init__(self, ros: Any) -> None:
        self.captured_ns: dict[int, int] = {}
        self._ros = ros
        self._out = ros.publisher(OBSERVATION)
        ros.every(0.025, self._publish)

    def _publish(self) -> None:
        number = len(self.captured_ns)
        now_ns = self._ros.node.get_clock().now().nanoseconds
        self.captured_ns[number] = now_ns
        message = Observation(stream_id="arm", observation_id=number)
        message.capture_oldest = message.capture_newest = ns_to_time(now_ns)
        message.receipt = message.header.stamp = message.capture_newest
        message.camera_names = ["front"]
        image = np.zeros((8, 8, 3), dtype=np.uint8)
        message.images = [rgb_to_image(image, stamp=message.receipt, frame_id="front")]
        message.joint_names, message.positions = ["a_joint"], [1e-3 * number]
        self._out.publish(message)

    def is_answered_by(self, chunk: ActionChunk) -> bool:
        """The positions are of the observation whose stamps the chunk carries."""
        number = round(1e3 * chunk.positions[0])
        return self.captured_ns[number] == time_to_ns(chunk.capture_newest)


@pytest.fixture
def server() -> Iterator[LateServer]:
    made = LateServer(free_port())
    yield made
    made.end()


def test_each_reply_belongs_to_its_request_and_another_model_is_refused(
    ros: Any, server: LateServer, tmp_path: Path
) -> None:
    contract = tmp_path / "contract.yaml"
    contract.write_text(CONTRACT)
    chunks: list[ActionChunk] = ros.listen(ACTION_CHUNK)
    robot = Robot(ros)
    node = ros.start(
        "policy_node",
        f"policy:=openpi://127.0.0.1:{server._port}",
        f"policy_contract:={contract}",
    )
    ros.wait_for_diagnosis("stream arm", "Connect call failed")
    server.listen()
    begun_s = time.monotonic()
    ros.wait(lambda: len(chunks) >= 20, "20 chunks")
    assert time.monotonic() - begun_s > COLD_S, "the cold server took its time"
    assert server.swapped >= 10
    assert server.left[0] == 0 and 1 <= max(server.left) <= 4, "what is left of the chunk before"
    first_epoch = chunks[0].epoch
    for chunk in chunks:
        assert robot.is_answered_by(chunk)
        assert time_to_ns(chunk.start) == time_to_ns(chunk.capture_newest)
        stamps = [chunk.capture_oldest, chunk.receipt, chunk.entry, chunk.header.stamp]
        assert [time_to_ns(s) for s in stamps] == sorted(time_to_ns(s) for s in stamps)
        assert chunk.epoch == first_epoch and len(chunk.positions) == 4
    ids = [chunk.chunk_id for chunk in chunks]
    assert ids == sorted(set(ids)), "an overtaken reply is no chunk"
    ros.wait_for_diagnosis("stream arm", "streaming")

    # The connection ends, the same server comes back: a new epoch, a new session.
    server.hang_up()
    server.listen()
    ros.wait(lambda: chunks[-1].epoch > first_epoch, "a chunk of a new epoch")
    assert robot.is_answered_by(chunks[-1])
    assert len(set(server.sessions)) == 2

    # Another model at the same address moves nothing.
    server.hang_up()
    server.metadata["model"] = "two"
    server.listen()
    ros.wait_for_diagnosis("stream arm", "model: 'one' before, 'two' now")
    count = len(chunks)
    server.hang_up()
    server.metadata["model"] = "one"
    server.listen()
    ros.wait(lambda: len(chunks) > count, "chunks of the first model again")
    assert chunks[count].epoch > first_epoch

    close = CloseStream.Request(stream_id="arm")
    assert ros.call(CLOSE_STREAM, close).closed
    opened = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="arm"))
    assert opened.admitted and opened.epoch > chunks[-1].epoch
    other = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="left"))
    assert not other.admitted and "serves 'arm' alone" in other.reason
    ros.wait(lambda: chunks[-1].epoch == opened.epoch, "a chunk of the stream opened again")
    assert ros.stop(node) == 0
