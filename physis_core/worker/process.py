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
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from physis_core.cluster.clock_sync import agree_on_time
from physis_core.cluster.cores import own_cores
from physis_core.cluster.host_clock import HostClock
from physis_core.cluster.messages import (
    Fatal,
    Hello,
    Observe,
    Ping,
    Pong,
    Ready,
    Refusal,
    Relink,
    Stop,
    Stopped,
    ToEngine,
    ToWorker,
)
from physis_core.cluster.orders import SHARED_AT, Orders, Shared, shared_key
from physis_core.cluster.threads import start_thread
from physis_core.cluster.transport import BadMessageError, Channel, worker_decoder
from physis_core.deployment.deployment import Deployment
from physis_core.types import UserError
from physis_core.worker.links.edges import WorkerLinks
from physis_core.worker.loop import WorkerLoop
from physis_core.worker.warmup import build_devices

_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.5
_ALONE_S = 5.0
"""A worker of another host that does not hear its engine for so long ends. The engine has taken it
for lost long before, and pings five times a second."""
_SWITCH_S = 2e-4
"""A receiving thread must not wait Python's usual 5 ms for a busy loop to let it run."""


def build_loop(
    deployment: Deployment,
    worker: int,
    reply: Callable[[ToEngine], object],
    reply_large: Callable[[ToEngine], object],
    clock: HostClock,
) -> tuple[WorkerLoop, Ready]:
    """A loop with its devices warm, links not yet made, and the `Ready` message to send after
    them.
    """
    start_s = time.monotonic()
    devices, measured = build_devices(deployment, worker)
    loop = WorkerLoop(deployment, devices, reply=reply, reply_large=reply_large, clock=clock)
    ready = Ready(
        worker=worker,
        pid=os.getpid(),
        warmup_s=time.monotonic() - start_s,
        costs=measured,
    )
    return loop, ready


def serve(orders: Orders) -> None:
    """Run one worker until it is stopped."""
    deployment = orders.deployment
    torch.set_num_threads(deployment.threads)
    sys.setswitchinterval(_SWITCH_S)
    connection = Client((orders.control_host, orders.control_port), authkey=orders.key)
    channel = Channel(connection, worker_decoder())
    channel.send(Hello(worker=orders.worker, pid=os.getpid(), incarnation=orders.incarnation))
    clock = HostClock()
    if not agree_on_time(channel, clock):
        return
    try:
        if deployment.bind_cores:
            cores = own_cores(
                os.sched_getaffinity(0),
                worker=orders.worker,
                workers=deployment.workers,
                threads=deployment.threads,
            )
            # Before there are other threads: they inherit it.
            os.sched_setaffinity(0, cores)
        # An engine that is gone is noticed by the reading thread, which stops the loop.
        loop, ready = build_loop(deployment, orders.worker, channel.send, channel.send_large, clock)
        links = WorkerLinks(
            deployment,
            orders.worker,
            loop,
            store=(orders.store_host, orders.store_port),
            host=orders.link_host,
        )
        if orders.incarnation == 0:
            links.make_all()
    except UserError as error:
        channel.send(Fatal(field=error.field, value=str(error.value), reason=error.reason))
        channel.close()
        return
    # What was built until now lives as long as the process: no collection need look at it again.
    gc.collect()
    gc.freeze()
    channel.send(ready)
    heard = Heard()
    start_thread("physis-read", lambda: _read(channel, loop, links, clock, heard), _end)
    if orders.far:
        # A child ends with its parent; a cut network to another host ends nothing by itself.
        start_thread("physis-front", lambda: _end_when_alone(heard), _end)
    loop.run()
    loop.close()
    channel.send(Stopped())
    channel.close()


class Heard:
    """When the engine was last heard, in seconds of this process's own clock."""

    def __init__(self) -> None:
        self.at_s = time.monotonic()


def _end_when_alone(heard: Heard) -> None:
    """End this process when the engine is silent: it has lost us, and may have replaced us."""
    looked_s = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        now_s = time.monotonic()
        if now_s - looked_s > 2.0 * _LOOK_S:
            # This process was stopped itself: what came meanwhile is not read yet.
            heard.at_s = max(heard.at_s, now_s - _LOOK_S)
        looked_s = now_s
        if now_s - heard.at_s > _ALONE_S:
            _end(f"the engine is silent for {_ALONE_S:g} s: this worker ends")


def _read(
    channel: Channel[ToWorker],
    loop: WorkerLoop,
    links: WorkerLinks,
    clock: HostClock,
    heard: Heard,
) -> None:
    """Everything that the engine says, until its end."""
    while True:
        try:
            message = channel.receive()
        except BadMessageError as error:
            channel.send(Refusal(reason=str(error)))
            continue
        heard.at_s = time.monotonic()
        match message:
            case None:
                break
            case Relink():
                # Not the loop's: the other end may take its time.
                links.make_anew(message.edge, message.generation)
            case Ping():
                channel.send(Pong(now_s=clock.now_s()))
            case Observe():
                loop.post_observation(message)
            case _:
                loop.post("message", message)
    loop.post("message", Stop())
    # The loop may be inside a long computation, and nobody is left to want its result.
    time.sleep(5.0)
    os._exit(1)


def _end(reason: str) -> None:
    """Without the thread that reads, the engine cannot stop this process any more."""
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)


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
    shared = Shared.from_json(store.get(SHARED_AT))
    return Orders(
        deployment_json=shared.deployment,
        worker=int(os.environ["RANK"]),
        store_host=host,
        store_port=int(port),
        control_host=host,
        control_port=shared.control_port,
        key=key,
        link_host=os.environ.get("PHYSIS_LINK_HOST", "127.0.0.1"),
        far=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="One worker process of the staged engine.")
    parser.add_argument("--front", help="HOST:PORT of the front's store; RANK names the worker")
    args = parser.parse_args()
    try:
        if args.front is None:
            die_with_parent()
            given = sys.stdin.readline()
            if not given:
                # The engine ended, or gave its start up, before it had orders.
                return
            orders = Orders.from_json(given)
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
