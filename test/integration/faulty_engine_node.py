"""An engine node whose engine fails, or stands still, at its third chunk.

python faulty_engine_node.py (fails | stands_still) --ros-args ...
"""

from __future__ import annotations

import sys
import time

from physis_core.types import FinishedChunk
from physis_ros.engine.engine_node import EngineNode
from physis_ros.engine.stream import EngineStream
from physis_ros.node.base import main


def faulty(fault: str) -> None:
    take_chunk = EngineStream.take_chunk

    def third_time(self: EngineStream, chunk: FinishedChunk) -> None:
        if self.chunks < 3:
            take_chunk(self, chunk)
        elif fault == "fails":
            raise ArithmeticError("a fault in the engine's thread")
        else:
            time.sleep(3600.0)

    EngineStream.take_chunk = third_time  # type: ignore[method-assign]


if __name__ == "__main__":
    faulty(sys.argv.pop(1))
    sys.exit(main(EngineNode))
