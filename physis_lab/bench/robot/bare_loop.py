"""Baseline of the safety loop: the same rate, priority and measurement, without any work.

`python -m physis_lab.bench.robot.bare_loop FILE RATE_HZ SECONDS PRIORITY` writes one JSON object
when the time is over. Ticks that this loop loses are lost by the machine.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from pathlib import Path

from physis_ros.node.system import lock_memory, request_realtime
from physis_ros.node.threads import FixedRateThread


def main(path: str, rate_hz: str, seconds: str, priority: str) -> int:
    errors: list[Exception] = []
    refused = request_realtime(int(priority)) or lock_memory()
    gc.collect()
    gc.freeze()
    loop = FixedRateThread(
        "bare",
        lambda: None,
        errors.append,
        period_s=1.0 / float(rate_hz),
        window=round(float(rate_hz) * float(seconds)),
    )
    begun_ns = time.time_ns()
    loop.start()
    threading.Event().wait(float(seconds))
    loop.stop()
    ended_ns = time.time_ns()
    if errors:
        raise errors[0]
    jitter = loop.timing.jitter_ms()
    outcome = {
        "p50": jitter.p50,
        "p99": jitter.p99,
        "p999": jitter.p999,
        "max": jitter.max,
        "lost": loop.timing.lost,
        "begun_ns": begun_ns,
        "ended_ns": ended_ns,
        "refused": refused,
    }
    Path(path).write_text(json.dumps(outcome))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
