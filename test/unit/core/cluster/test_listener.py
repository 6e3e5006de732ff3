"""Peers with and without the key: none of them holds up another."""

from __future__ import annotations

import queue
import socket
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection

import pytest

from physis_core.cluster import listener as listener_module
from physis_core.cluster.listener import KeyListener

KEY = b"k" * 32
PATIENCE_S = 30.0


@pytest.fixture
def greeted() -> queue.SimpleQueue[Connection]:
    return queue.SimpleQueue()


@pytest.fixture
def listener(greeted):
    failed: list[str] = []
    made = KeyListener("127.0.0.1", KEY, greeted=greeted.put, failed=failed.append)
    made.start()
    yield made
    made.close()
    assert failed == []


def joins(listener: KeyListener, greeted: queue.SimpleQueue[Connection]) -> None:
    with Client(("127.0.0.1", listener.port), authkey=KEY) as ours:
        theirs = greeted.get(timeout=PATIENCE_S)
        ours.send_bytes(b"hello")
        assert theirs.recv_bytes() == b"hello"
        theirs.close()


def silent(listener: KeyListener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port))


def hung_up(peer: socket.socket) -> bool:
    peer.settimeout(PATIENCE_S)
    try:
        while peer.recv(4096):
            pass
    except ConnectionResetError:
        return True
    return True


def test_silent_peers_keep_nobody_from_joining(listener, greeted):
    peers = [silent(listener) for _ in range(20)]
    joins(listener, greeted)
    joins(listener, greeted)
    for peer in peers:
        peer.close()


def test_a_silent_peer_and_one_that_drips_are_hung_up_on(listener, greeted, monkeypatch):
    monkeypatch.setattr(listener_module, "GREET_S", 0.2)
    quiet, dripping = silent(listener), silent(listener)
    dripping.send(b"\0")
    assert hung_up(quiet)
    assert hung_up(dripping)
    monkeypatch.setattr(listener_module, "GREET_S", 5.0)
    joins(listener, greeted)


def test_no_more_peers_than_stated_are_listened_to_without_a_key(greeted, monkeypatch):
    monkeypatch.setattr(listener_module, "MOST_UNPROVEN", 2)
    monkeypatch.setattr(listener_module, "GREET_S", 1.0)
    listener = KeyListener("127.0.0.1", KEY, greeted=greeted.put, failed=print)
    listener.start()
    peers = [silent(listener) for _ in range(3)]
    assert hung_up(peers[2])
    for peer in peers[:2]:
        assert hung_up(peer)
    joins(listener, greeted)
    listener.close()


def test_another_key_is_refused(listener, greeted):
    with pytest.raises(AuthenticationError):
        Client(("127.0.0.1", listener.port), authkey=b"x" * 32)
    joins(listener, greeted)
    assert greeted.empty()


@pytest.mark.parametrize(
    "said", [b"\x80\x04K\x01." * 100, b"\xff" * 4096, b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n"]
)
def test_whatever_else_is_said_harms_nobody(listener, greeted, said):
    peer = silent(listener)
    peer.sendall(said)
    joins(listener, greeted)
    assert greeted.empty()
    peer.close()


def test_a_closed_listener_takes_nobody(greeted):
    listener = KeyListener("127.0.0.1", KEY, greeted=greeted.put, failed=print)
    listener.start()
    port = listener.port
    listener.close()
    try:
        with socket.create_connection(("127.0.0.1", port)) as late:
            # Where the kernel had it in its queue still.
            assert hung_up(late)
    except ConnectionRefusedError:
        pass  # The usual end.
    assert greeted.empty()
