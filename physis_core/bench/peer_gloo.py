"""The yardstick of `physis bench links`: a bare gloo send and receive between two processes.

Run as `python -m physis_core.bench.peer_gloo` with one JSON argument, twice. Rank 0 prints a JSON
list: one-way seconds (half of a round trip) of each exchange, for each size.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from physis_core.runtime.link import edge_group

WARM_UP = 20


def one_way_s(sizes_bytes: Sequence[int], *, exchanges: int, timeout_s: float) -> list[list[float]]:
    """For each size the one-way time of each exchange. [sizes][exchanges]

    Raises:
        RuntimeError: a process failed.
    """
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    orders = {"port": store.port, "sizes": list(sizes_bytes), "exchanges": exchanges}
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "physis_core.bench.peer_gloo",
                json.dumps({**orders, "rank": rank}),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [p.communicate(timeout=timeout_s) for p in processes]
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.wait()
    for p, (_, errors) in zip(processes, said, strict=True):
        if p.returncode != 0:
            raise RuntimeError(f"bare gloo peer failed: {errors[-800:]}")
    times: list[list[float]] = json.loads(said[0][0])
    return times


def _main(argument: str) -> None:
    given = json.loads(argument)
    torch.set_num_threads(1)
    rank, exchanges = given["rank"], given["exchanges"]
    store = TCPStore("127.0.0.1", given["port"], None, False)
    group = edge_group(store, "bare", rank, "127.0.0.1")
    result = []
    for tag, size in enumerate(given["sizes"]):
        out, back = torch.zeros(size, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
        times = []
        for _ in range(exchanges + WARM_UP):
            begin_s = time.monotonic()
            if rank == 0:
                group.send([out], 1, tag).wait()
                group.recv([back], 1, tag).wait()
            else:
                group.recv([back], 0, tag).wait()
                group.send([out], 0, tag).wait()
            times.append((time.monotonic() - begin_s) / 2)
        result.append(times[WARM_UP:])
    if rank == 0:
        print(json.dumps(result), flush=True)
    # Neither may go before the other has its last message.
    store.set(f"done/{rank}", "1")
    store.wait(["done/0", "done/1"])


if __name__ == "__main__":
    _main(sys.argv[1])
