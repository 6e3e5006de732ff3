"""Connections to the engine, each shown the cluster's key before anything else is read of it.

Each peer proves the key in a thread of its own and within a time limit, so that a silent one holds
up nobody. Until then at most 256 bytes of a message are read, and few peers at a time may try.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from physis_core.cluster.threads import start_thread

GREET_S = 5.0
"""Time in which a peer must have shown the key."""
MOST_UNPROVEN = 64
"""Peers that may be showing the key at a time; further ones are hung up on."""


class KeyListener:
    """Args:
    greeted: gets the connection of a peer that has the key, in a thread of that connection.
    failed: gets the reason where the accepting thread ends by an error.
    """

    def __init__(
        self,
        host: str,
        key: bytes,
        *,
        greeted: Callable[[Connection], None],
        failed: Callable[[str], None],
    ) -> None:
        self._key = key
        self._greeted = greeted
        self._failed = failed
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=MOST_UNPROVEN)
        self._unproven = threading.Semaphore(MOST_UNPROVEN)
        self._closing = False
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        start_thread("physis-accept", self._accept, self._failed)

    def close(self, timeout_s: float = 2.0) -> None:
        """Accept no more, and wait for the threads of connections that have ended."""
        self._closing = True
        # To close a socket does not wake the thread that accepts on it: a last caller does.
        with contextlib.suppress(OSError), socket.create_connection(self._socket.getsockname()[:2]):
            pass
        self._socket.close()
        for thread in self._threads:
            thread.join(timeout=timeout_s)

    def _accept(self) -> None:
        while not self._closing:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                # A peer that hung up at once, or the socket was closed by us.
                continue
            if self._closing or not self._unproven.acquire(blocking=False):
                peer.close()
                continue
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            greet = functools.partial(self._greet, peer)
            self._threads.append(start_thread("physis-read", greet, self._failed))

    def _greet(self, peer: socket.socket) -> None:
        # All of it has one limit: a peer that sends a byte now and then is hung up on, too.
        ends = threading.Timer(GREET_S, _hang_up, (peer,))
        ends.daemon = True
        ends.start()
        connection = Connection(os.dup(peer.fileno()))
        try:
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
        except (OSError, EOFError, AuthenticationError):
            # Silent, hung up, with another key, or with something else to say.
            connection.close()
            return
        finally:
            ends.cancel()
            ends.join()
            peer.close()
            self._unproven.release()
        self._greeted(connection)


def _hang_up(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
