"""A worker process: `python -m physis_core.worker.process`.

Started by the front with its orders as JSON on standard input, or on any host by torchrun with
`--front HOST:PORT` (the front's store) and the shared key in PHYSIS_KEY; RANK then says which
worker this is. It builds only its own blocks, says `ready`, and runs its event loop until the front
stops it or goes away.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Client
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from physis_core.cluster.clock_sync import agree_on_time
from physis_core.cluster.cores import own_cores
from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import Channel, Message
from physis_core.deployment.deployment import Deployment
from physis_core.types import UserError
from physis_core.worker.links.edges import WorkerLinks
from physis_core.worker.loop import WorkerLoop
from physis_core.worker.warmup import build_devices

_PR_SET_PDEATHSIG = 1
_SHORTEST_KEY_BYTES = 16
_SWITCH_S = 2e-4
"""A receiving thread must not wait Python's usual 5 ms for a busy loop to let it run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a worker needs to know to find its place."""

    deployment: Deployment
    worker: int
    store_host: str
    store_port: int
    control_host: str
    control_port: int
    key: bytes
    link_host: str
    incarnation: int = 0
    """How often this worker was started before. Links of a later one are made when the front says
    so."""

    def to_json(self) -> str:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        values["deployment"] = self.deployment.to_json()
        values["key"] = self.key.hex()
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> Orders:
        values = json.loads(text)
        values["deployment"] = Deployment.from_json(values["deployment"])
        values["key"] = bytes.fromhex(values["key"])
        return cls(**values)


def build_loop(
    deployment: Deployment,
    worker: int,
    reply: Callable[[Message], object],
    reply_large: Callable[[Message], object],
    clock: HostClock,
) -> tuple[WorkerLoop, Message]:
    """A loop with its devices warm, links not yet made, and the `ready` message to send after
    them.
    """
    start_s = time.monotonic()
    devices, measured = build_devices(deployment, worker)
    loop = WorkerLoop(deployment, devices, reply=reply, reply_large=reply_large, clock=clock)
    ready = Message(
        "ready",
        {
            "worker": worker,
            "pid": os.getpid(),
            "warmup_s": time.monotonic() - start_s,
            "costs": {str(block): row for block, row in measured.items()},
        },
    )
    return loop, ready


def serve(orders: Orders) -> None:
    """Run one worker until it is stopped."""
    torch.set_num_threads(orders.deployment.threads)
    sys.setswitchinterval(_SWITCH_S)
    connection = Client((orders.control_host, orders.control_port), authkey=orders.key)
    channel = Channel(connection)
    channel.send(
        Message(
            "hello",
            {"worker": orders.worker, "pid": os.getpid(), "incarnation": orders.incarnation},
        )
    )
    clock = HostClock()
    if not agree_on_time(channel, clock):
        return
    try:
        if orders.deployment.bind_cores:
            cores = own_cores(
                os.sched_getaffinity(0),
                worker=orders.worker,
                workers=orders.deployment.workers,
                threads=orders.deployment.threads,
            )
            # Before there are other threads: they inherit it.
            os.sched_setaffinity(0, cores)
        # A front that is gone is noticed by the reading thread, which stops the loop.
        loop, ready = build_loop(
            orders.deployment, orders.worker, channel.send, channel.send_large, clock
        )
        links = WorkerLinks(
            orders.deployment,
            orders.worker,
            loop,
            store=(orders.store_host, orders.store_port),
            host=orders.link_host,
        )
        if orders.incarnation == 0:
            links.make_all()
    except UserError as error:
        fatal = {"field": error.field, "value": str(error.value), "reason": error.reason}
        channel.send(Message("fatal", {"worker": orders.worker, **fatal}))
        channel.close()
        return
    # What was built until now lives as long as the process: no collection need look at it again.
    gc.collect()
    gc.freeze()
    channel.send(ready)
    reader = threading.Thread(target=_read, args=(channel, loop, links), daemon=True)
    reader.start()
    loop.run()
    loop.close()
    channel.send(Message("stopped", {"worker": orders.worker}))
    channel.close()


def _read(channel: Channel, loop: WorkerLoop, links: WorkerLinks) -> None:
    while True:
        message = channel.receive()
        if message is None:
            break
        if message.kind == "relink":
            # Not the loop's: the other end may take its time.
            links.make_anew(tuple(message.fields["edge"]), message.fields["generation"])
        else:
            loop.post("message", message)
    loop.post("message", Message("stop", {}))
    # The loop may be inside a long computation, and nobody is left to want its result.
    time.sleep(5.0)
    os._exit(1)


def shared_key(environment: Mapping[str, str]) -> bytes:
    """What front and workers know each other by, where one does not start the other.

    Raises:
        UserError: PHYSIS_KEY is missing, or is not at least 16 bytes in hexadecimal.
    """
    text = environment.get("PHYSIS_KEY", "")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) < _SHORTEST_KEY_BYTES:
        # The value is a secret: it is not repeated.
        raise UserError(
            "PHYSIS_KEY",
            "...",
            f"must hold at least {2 * _SHORTEST_KEY_BYTES} hexadecimal digits, the same everywhere",
        )
    return key


def die_with_parent() -> None:
    """Ask the kernel to end this process when the one that started it ends, however it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def _orders_of_torchrun(front: str) -> Orders:
    host, _, port = front.rpartition(":")
    if not host or not port.isdigit():
        raise UserError("--front", front, "must be HOST:PORT")
    key = shared_key(os.environ)
    if not os.environ.get("RANK", "").isdigit():
        raise UserError("RANK", os.environ.get("RANK"), "must number the worker, as torchrun does")
    store = TCPStore(host, int(port), None, False)
    shared: dict[str, Any] = json.loads(store.get("physis/cluster").decode())
    return Orders(
        deployment=Deployment.from_json(shared["deployment"]),
        worker=int(os.environ["RANK"]),
        store_host=host,
        store_port=int(port),
        control_host=host,
        control_port=shared["control_port"],
        key=key,
        link_host=os.environ.get("PHYSIS_LINK_HOST", "127.0.0.1"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker process of the staged engine.")
    parser.add_argument("--front", help="HOST:PORT of the front's store; RANK names the worker")
    args = parser.parse_args()
    try:
        if args.front is None:
            die_with_parent()
            orders = Orders.from_json(sys.stdin.readline())
        else:
            orders = _orders_of_torchrun(args.front)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    # Ctrl-C reaches the whole terminal group; the front decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 0
    try:
        serve(orders)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that wait inside gloo would keep the interpreter from ending.
    os._exit(code)


if __name__ == "__main__":
    main()
