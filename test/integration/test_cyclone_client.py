"""A client of another DDS vendor, without ROS, reads action chunks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from physis_ros.msg import ActionChunk
from physis_ros.node.interfaces import ACTION_CHUNK, in_namespace

CLIENT = Path(__file__).parents[2] / "docs" / "examples" / "cyclone_action_chunk.py"


def test_cyclone_reads_every_field(ros: Any, tmp_path: Path) -> None:
    publisher = ros.publisher(in_namespace(ACTION_CHUNK, "left"))
    message = ActionChunk(stream_id="arm", epoch=7, chunk_id=2**40)
    message.header.stamp.sec = 100
    message.capture_oldest.sec = 99
    message.capture_oldest.nanosec = 900_000_000
    message.missed = True
    message.step.nanosec = 50_000_000
    message.joint_names = ["a", "b"]
    message.positions = [0.25, -0.5, 1.0, 2.0]
    ros.every(0.1, lambda: publisher.publish(message))
    said = tmp_path / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(CLIENT), "--namespace", "left", "--count", "3"],
            env={**os.environ, "ROS_DOMAIN_ID": str(ros.domain)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    ros.processes.append(process)
    ros.logs[process.pid] = said
    ros.wait(lambda: process.poll() is not None, "the client to read three chunks")
    lines = said.read_text().splitlines()
    assert process.returncode == 0, lines
    wanted = (
        f"arm epoch 7 chunk {2**40}: 2 steps, 100.0 ms from capture to exit, "
        "first [+0.250, -0.500] rad"
    )
    assert lines == [wanted] * 3
