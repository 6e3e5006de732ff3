"""Worker processes of an engine: nothing of them is left behind, and nobody else can reach them."""

from __future__ import annotations

import socket
import threading

import psutil
import pytest

from physis_core.deployment.deployment import simple_deployment
from physis_core.engine.engine import Engine
from physis_core.engine.stream import StreamConfig
from physis_core.types import UserError


def test_no_thread_is_left_when_an_engine_has_ended(watch, synthetic, eventually):
    before = set(threading.enumerate())
    deployment = simple_deployment(synthetic(), partition="block", devices=2, workers=2)
    with watch(deployment) as seen:
        seen.engine.open_stream(StreamConfig(stream_id="a", release="free"))
        seen.observe("a")
        seen.until_chunks("a", 2)
    eventually(lambda: set(threading.enumerate()) <= before)


def listening():
    own = psutil.Process()
    return {
        connection.laddr
        for process in (own, *own.children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def test_everything_listens_on_loopback_alone(watch, synthetic):
    # Other tests of this process may have left stores of their own.
    before = listening()
    deployment = simple_deployment(synthetic(), partition="block", devices=2, workers=2)
    with watch(deployment):
        assert {address.ip for address in listening() - before} == {"127.0.0.1"}


def test_a_port_that_is_taken_is_named(synthetic):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        deployment = simple_deployment(synthetic(), workers=1, front_port=port)
        engine = Engine(deployment, on_chunk=print)
        with pytest.raises(UserError, match=rf"front_port: {port}: cannot listen at 127\.0\.0\.1"):
            engine.start()
