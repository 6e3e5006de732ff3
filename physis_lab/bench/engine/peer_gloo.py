"""Baseline of `physis bench links`: a bare gloo send and receive between two processes.

Runs as `python -m physis_lab.bench.engine.peer_gloo`, once per rank, with one JSON argument. Rank 1
prints a JSON list with the one-way seconds of each message, for each size. Between messages rank 0
computes and rank 1 waits, as two neighbouring stages do: an idle core takes several times longer to
wake up than a busy one, and that is not a cost of the engine.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from physis_core.cluster.cores import own_cores
from physis_core.cluster.store import listening_store
from physis_core.worker.links.gloo import edge_group
from physis_lab.bench.engine.ranks import run_ranks

WARM_UP = 20


def one_way_s(
    sizes_bytes: Sequence[int], *, gaps_s: Sequence[float], exchanges: int, timeout_s: float
) -> list[list[float]]:
    """One-way seconds of each message, [sizes][exchanges].

    `gaps_s`: for each size, how long the sender computes before a message.

    Raises:
        RuntimeError: a process failed.
    """
    store = listening_store("127.0.0.1", 0)
    order = {
        "port": store.port,
        "sizes": list(sizes_bytes),
        "gaps_s": list(gaps_s),
        "exchanges": exchanges,
    }
    orders = [{**order, "rank": rank} for rank in (0, 1)]
    times: list[list[float]] = run_ranks(__name__, orders, timeout_s=timeout_s)[1]
    return times


def _main(argument: str) -> None:
    given = json.loads(argument)
    torch.set_num_threads(1)
    rank, exchanges = given["rank"], given["exchanges"]
    os.sched_setaffinity(0, own_cores(os.sched_getaffinity(0), worker=rank, workers=2, threads=1))
    store = TCPStore("127.0.0.1", given["port"], None, False)
    group = edge_group(store, "bare", rank, "127.0.0.1")
    result = []
    work = torch.rand(512, 512)
    for tag, (size, gap_s) in enumerate(zip(given["sizes"], given["gaps_s"], strict=True)):
        out, back = torch.zeros(size, dtype=torch.uint8), torch.empty(8, dtype=torch.uint8)
        stamp = out[:8].view(torch.float64)
        times = []
        for _ in range(exchanges + WARM_UP):
            if rank == 0:
                ends_s = time.monotonic() + gap_s
                while time.monotonic() < ends_s:
                    torch.mm(work, work)
                stamp[0] = time.monotonic()
                group.send([out], 1, tag).wait()
                group.recv([back], 1, tag).wait()
            else:
                group.recv([out], 0, tag).wait()
                times.append(time.monotonic() - float(stamp[0]))
                group.send([back], 0, tag).wait()
        result.append(times[WARM_UP:])
    if rank == 1:
        print(json.dumps(result), flush=True)
    # Both must stay until the other has its last message.
    store.set(f"done/{rank}", "1")
    store.wait(["done/0", "done/1"])


if __name__ == "__main__":
    _main(sys.argv[1])
