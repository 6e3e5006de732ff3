"""The peer of `physis bench pipeline`: the forward schedule of torch.distributed.pipelining.

Runs as `python -m physis_lab.bench.engine.peer_torch`, once per rank, with one JSON argument. A
microbatch is one chunk. Each rank keeps the KV of its stages in its module, which is correct
because the schedule runs a rank's microbatches in order. The last rank prints one JSON line with
the completion time of each chunk.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from physis_core.cluster.cores import own_cores
from physis_core.cluster.store import listening_store
from physis_core.model.protocol import NoiseKey, Payload
from physis_core.model.synthetic.config import SyntheticConfig
from physis_core.model.synthetic.model import SyntheticModel
from physis_core.types import StageGraph
from physis_lab.bench.engine.ranks import run_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """Completion times of the chunks at the last rank [s, monotonic], in order."""

    done_s: tuple[float, ...]
    action_sum: float


class _ChunkStages(torch.nn.Module):
    """Stages first .. last - 1 of a chunk, in order, with their KV."""

    def __init__(self, model: SyntheticModel, first: int, last: int) -> None:
        super().__init__()
        self._model = model
        self._graph: StageGraph = model.spec.graph
        self._stages = [self._graph.stage(s) for s in range(first, last)]
        self._kv = [model.new_kv(stage.block) for stage in self._stages]
        self._condition = [model.condition({})]
        self._chunk = 0
        self.done_s: list[float] = []

    def forward(self, *payload: Tensor) -> Any:
        blocks = self._graph.blocks
        key = [NoiseKey(seed=0, epoch=0, chunk_id=self._chunk)]
        self._chunk += 1
        current: Payload = payload
        for stage, kv in zip(self._stages, self._kv, strict=True):
            step = [stage.step]
            if stage.block == 0:
                current = self._model.embed(current, step)
            current = self._model.block(stage.block, current, step, [kv], self._condition, [True])
            if stage.block == blocks - 1:
                current = self._model.head(current, step, key)
        self.done_s.append(time.monotonic())
        return current


def run_peer(
    config: Mapping[str, Any], *, ranks: int, chunks: int, port: int, timeout_s: float
) -> PeerRun:
    """Run `chunks` chunks of one observation through `ranks` processes.

    Raises:
        RuntimeError: a rank failed; the message holds the end of its output.
    """
    orders = [
        {"rank": rank, "ranks": ranks, "chunks": chunks, "port": port, "model": dict(config)}
        for rank in range(ranks)
    ]
    line = run_ranks(__name__, orders, timeout_s=timeout_s)[-1]
    return PeerRun(done_s=tuple(line["done_s"]), action_sum=line["action_sum"])


def _main(argument: str) -> None:
    given = json.loads(argument)
    rank, ranks, chunks = given["rank"], given["ranks"], given["chunks"]
    torch.set_num_threads(1)
    cores = own_cores(os.sched_getaffinity(0), worker=rank, workers=ranks, threads=1)
    os.sched_setaffinity(0, cores)
    # By default torch resolves the host's name and listens on all interfaces.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    host, port = "127.0.0.1", given["port"]
    store = listening_store(host, port) if rank == 0 else TCPStore(host, port, None, False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=120)
    )
    model = SyntheticModel(SyntheticConfig(**given["model"]))
    graph = model.spec.graph
    cuts = [round(graph.stages * r / ranks) for r in range(ranks + 1)]
    module = _ChunkStages(model, cuts[rank], cuts[rank + 1])

    def example(boundary: int) -> tuple[Tensor, ...]:
        specs = model.spec.latent if boundary % graph.blocks == 0 else model.spec.hidden
        return tuple(torch.zeros(1, *s.shape, dtype=s.dtype) for s in specs)

    stage = PipelineStage(
        module,
        rank,
        ranks,
        torch.device("cpu"),
        input_args=example(cuts[rank]),
        output_args=example(cuts[rank + 1]),
    )
    with torch.inference_mode():
        schedule = ScheduleGPipe(stage, n_microbatches=chunks)
        if rank == 0:
            keys = [NoiseKey(seed=0, epoch=0, chunk_id=c) for c in range(chunks)]
            state = torch.zeros(chunks, *model.spec.observation["state"].shape)
            outputs = schedule.eval(*model.inject({"state": state}, keys))
        else:
            outputs = schedule.eval()
        if rank == ranks - 1:
            latent = outputs if isinstance(outputs, tuple) else (outputs,)
            action = model.finish(latent, ())["action"]
            result = {"done_s": module.done_s[-chunks:], "action_sum": float(action.double().sum())}
            print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(sys.argv[1])
