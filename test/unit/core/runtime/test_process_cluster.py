"""Worker processes of an engine: nothing of them is left behind."""

from __future__ import annotations

import threading

from physis_core.runtime.deployment import simple_deployment
from physis_core.runtime.stream import StreamConfig


def test_no_thread_is_left_when_an_engine_has_ended(watch, synthetic, eventually):
    before = set(threading.enumerate())
    deployment = simple_deployment(synthetic(), partition="block", devices=2, workers=2)
    with watch(deployment) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until_chunks("a", 2)
    eventually(lambda: set(threading.enumerate()) <= before)
