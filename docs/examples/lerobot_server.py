"""A policy of LeRobot on openpi's wire. Runs in LeRobot's own environment, without this project.

    python3.12 -m venv lerobot-env
    lerobot-env/bin/pip install lerobot websockets msgpack
    lerobot-env/bin/python lerobot_server.py PRETRAINED_FOLDER --port 8000

A request names its values as the policy does: `observation.state`, `observation.images.NAME` (uint8
[height, width, 3]) and `task`. Tried with lerobot 0.6.1 and an ACT policy of random weights.

With `--rtc` (pi0, pi0.5, SmolVLA) the chunks are made by real-time chunking: the metadata say that
the server takes `inference_delay` and `prev_chunk_left_over`. The policy continues its own last
chunk, of which the client still holds as many rows as it sends.
"""

from __future__ import annotations

import argparse
import http
import time
from typing import Any

import msgpack
import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from lerobot.policies.utils import prepare_observation_for_inference
from websockets.sync.server import ServerConnection, serve

RTC_INPUTS = ("inference_delay", "prev_chunk_left_over")


def pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        mark = {b"__ndarray__": True, b"data": array.tobytes(), b"dtype": array.dtype.str}
        return {**mark, b"shape": array.shape}
    raise TypeError(f"{type(value).__name__} has no place on this wire")


def unpack(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in value:
        return value
    array = np.frombuffer(value[b"data"], dtype=np.dtype(value[b"dtype"]))
    return array.reshape(value[b"shape"])


class LeRobotPolicy:
    """A pretrained policy with its processors."""

    def __init__(self, path: str, device: str, rtc: bool) -> None:
        config = PreTrainedConfig.from_pretrained(path)
        config.device = device
        if rtc:
            from lerobot.policies.rtc.configuration_rtc import RTCConfig

            config.rtc_config = RTCConfig(enabled=True)
        self._policy = get_policy_class(config.type).from_pretrained(path, config=config)
        self._device = torch.device(device)
        self._before, self._after = make_pre_post_processors(
            config, path, preprocessor_overrides={"device_processor": {"device": device}}
        )
        self._rtc = rtc
        self.metadata = {
            "model": path,
            "policy_type": config.type,
            "action_dim": int(config.output_features["action"].shape[0]),
            "inputs": list(RTC_INPUTS) if rtc else [],
        }

    @torch.no_grad()  # not inference_mode: real-time chunking takes a gradient
    def infer(self, request: dict[str, Any], last: torch.Tensor | None) -> tuple[Any, Any]:
        """Actions [steps, dims] in the robot's units, and the chunk as the policy gave it."""
        options = {}
        left = request.pop("prev_chunk_left_over", None)
        delay = request.pop("inference_delay", None)
        if self._rtc and left is not None and last is not None:
            options = {"inference_delay": delay, "prev_chunk_left_over": last[:, -len(left) :]}
        task = request.pop("task", "")
        arrays = {name: np.array(value) for name, value in request.items()}
        batch = self._before(prepare_observation_for_inference(arrays, self._device, task))
        chunk = self._policy.predict_action_chunk(batch, **options)
        return self._after(chunk)[0].float().cpu().numpy(), chunk

    def answer(self, connection: ServerConnection) -> None:
        """One client, until it leaves."""
        last = None
        connection.send(msgpack.packb(self.metadata, default=pack))
        for data in connection:
            begun_s = time.monotonic()
            try:
                request = msgpack.unpackb(data, object_hook=unpack)
                actions, last = self.infer(request, last)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                connection.send(f"{type(error).__name__}: {error}")
                continue
            timing = {"infer_ms": 1e3 * (time.monotonic() - begun_s)}
            reply = {"actions": actions, "server_timing": timing}
            connection.send(msgpack.packb(reply, default=pack))


def main() -> None:
    parser = argparse.ArgumentParser(description="a policy of LeRobot on openpi's wire")
    parser.add_argument("path", help="folder of the pretrained policy and its processors")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rtc", action="store_true", help="real-time chunking")
    args = parser.parse_args()
    policy = LeRobotPolicy(args.path, args.device, args.rtc)

    def health(connection: ServerConnection, request: Any) -> Any:
        if request.path == "/healthz":
            return connection.respond(http.HTTPStatus.OK, "OK\n")
        return None

    options = {"compression": None, "max_size": 64 * 2**20, "ping_interval": None}
    with serve(policy.answer, args.host, args.port, process_request=health, **options) as server:
        print(f"{args.path} on openpi://{args.host}:{args.port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
