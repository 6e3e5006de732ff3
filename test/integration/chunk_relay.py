"""A bad network between engine and buffer: loses and swaps chunks by seed, or sends bursts.

`python chunk_relay.py --epoch N --seed N --lose SHARE --swap SHARE --burst COPIES`, a process of
its own. Reads `action_chunk`, writes `relayed/action_chunk`. `epoch` is added to the engine's, so
that a relay that takes the place of another begins a new one, as an engine does.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys

import rclpy
from rclpy.executors import ExternalShutdownException

from physis_ros.msg import ActionChunk
from physis_ros.node.interfaces import ACTION_CHUNK, action_chunk

RELAYED = "relayed/action_chunk"


class Relay:
    """`lose` and `swap`: shares of the chunks that are lost, or sent after the next one. `burst`:
    after SIGUSR1 the next chunk is sent so many times, each copy as a chunk of its own."""

    def __init__(self, *, epoch: int, seed: int, lose: float, swap: float, burst: int) -> None:
        self._epoch = epoch
        self._copies = 0
        self._random = random.Random(seed)
        self._lose, self._swap, self._burst = lose, swap, burst
        self._kept: ActionChunk | None = None
        self._burst_is_due = False
        self._node = rclpy.create_node("chunk_relay")
        out = action_chunk(offered=True)
        self._out = self._node.create_publisher(out.type, RELAYED, out.qos)
        self._node.create_subscription(
            ACTION_CHUNK.type, ACTION_CHUNK.name, self._take, ACTION_CHUNK.qos
        )

    def spin(self) -> None:
        rclpy.spin(self._node)

    def burst(self) -> None:
        self._burst_is_due = True

    def _take(self, chunk: ActionChunk) -> None:
        chunk.epoch += self._epoch
        chunk.chunk_id += self._copies
        # Both are drawn for every chunk: one share does not shift the other's draws.
        lost, swapped = self._random.random() < self._lose, self._random.random() < self._swap
        if lost:
            return
        if swapped and self._kept is None:
            self._kept = chunk
            return
        self._out.publish(chunk)
        if self._kept is not None:
            self._out.publish(self._kept)
            self._kept = None
        if self._burst_is_due:
            self._burst_is_due = False
            for _ in range(self._burst):
                chunk.chunk_id += 1
                self._out.publish(chunk)
            self._copies += self._burst


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epoch", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lose", type=float, default=0.0)
    parser.add_argument("--swap", type=float, default=0.0)
    parser.add_argument("--burst", type=int, default=0)
    given = parser.parse_args()
    rclpy.init(args=[])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        relay = Relay(**vars(given))
        signal.signal(signal.SIGUSR1, lambda _number, _frame: relay.burst())
        relay.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        return 0
    return 1  # spin ends by a signal alone


if __name__ == "__main__":
    sys.exit(main())
