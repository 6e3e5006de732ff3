"""The links of one worker process: made in one order at its start, and one by one after a loss."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from physis_core.cluster.threads import start_thread
from physis_core.deployment.deployment import Deployment
from physis_core.model.loading import load_spec
from physis_core.pipeline.stages import InFlight
from physis_core.worker.links.envelope import ENVELOPE_BYTES
from physis_core.worker.links.gloo import GlooReceiver, GlooSender, edge_group
from physis_core.worker.links.link import (
    Credit,
    LinkReceiver,
    LinkSender,
    PayloadLayout,
    check_link,
)
from physis_core.worker.links.nccl import NcclReceiver, NcclSender, nccl_group
from physis_core.worker.links.table import Edge, LinkTable

_MEET_S = 60.0
"""How long one end of an edge that is made anew waits for the other one."""


class LinkOwner(Protocol):
    """The worker's loop, as its links need it."""

    links: LinkTable

    def post(self, kind: str, what: Any) -> None: ...

    def deliver(self, chunk: InFlight) -> None: ...

    def fail(self, reason: str) -> None: ...


class WorkerLinks:
    """Args:
    loop: gets the links, and what comes over them.
    store: address of the engine's store.
    host: the address of this host that peers reach.
    """

    def __init__(
        self,
        deployment: Deployment,
        worker: int,
        loop: LinkOwner,
        *,
        store: tuple[str, int],
        host: str,
    ) -> None:
        self._deployment = deployment
        self._worker = worker
        self._loop = loop
        self._store = store
        self._host = host
        self._layout = PayloadLayout([load_spec(ref) for ref in deployment.models.values()])

    def make_all(self) -> None:
        """Every worker makes its edges in the one order of the deployment, so that no two wait for
        each other. Before the loop runs.
        """
        check_link(self._deployment.link)
        store = TCPStore(*self._store, None, False)
        for edge in self._deployment.remote_edges():
            if self._worker in self._ends(edge):
                self._loop.links.put(edge, self._make(store, edge, 0), 0)

    def make_anew(self, edge: Edge, generation: int) -> None:
        """Start to make an edge once more. The loop gets the link, or hears that it is lost."""
        start_thread(
            f"physis-link-{edge[0]}-{edge[1]}-{generation}",
            lambda: self._make_anew(edge, generation),
            self._loop.fail,
        )

    def _make_anew(self, edge: Edge, generation: int) -> None:
        try:
            # A store connection serves one call at a time, and this one waits.
            store = TCPStore(*self._store, None, False)
            rank = self._ends(edge).index(self._worker)
            here = f"meet/{edge[0]}/{edge[1]}/{generation}"
            store.set(f"{here}/{rank}", "1")
            # gloo itself would wait for a peer that never comes as long as for one that is idle.
            store.wait([f"{here}/{1 - rank}"], timedelta(seconds=_MEET_S))
            link = self._make(store, edge, generation)
        except RuntimeError as error:
            self._loop.post("lost", (edge, generation, str(error)))
            return
        self._loop.post("linked", (edge, generation, link))

    def _ends(self, edge: Edge) -> list[int]:
        return [self._deployment.devices[d].worker for d in edge]

    def _make(self, store: TCPStore, edge: Edge, generation: int) -> LinkSender | LinkReceiver:
        deployment, loop = self._deployment, self._loop
        stages = [
            (deployment.model_number(route.model), stage)
            for route in deployment.routes
            for stage in range(1, route.partition.graph.stages)
            if (route.device_of(stage - 1), route.device_of(stage)) == edge
        ]
        size = self._layout.bytes_for(stages)
        name = f"edge/{edge[0]}/{edge[1]}/{generation}"
        rank = self._ends(edge).index(self._worker)
        group = edge_group(store, name, rank, self._host)

        def credits(given: list[Credit]) -> None:
            loop.post("credits", given)

        def chunk(came: InFlight) -> None:
            loop.deliver(came)

        def lost(reason: str) -> None:
            loop.post("lost", (edge, generation, reason))

        kinds = [deployment.devices[d].kind for d in edge]
        if deployment.link == "nccl" and not {"cpu", "emulated"} & set(kinds):
            payload = nccl_group(store, f"nccl/{name}", rank)
            device = torch.device(kinds[rank])
            if rank == 0:
                return NcclSender(
                    group,
                    payload,
                    size,
                    self._layout,
                    device,
                    on_credits=credits,
                    on_lost=lost,
                    on_fault=loop.fail,
                )
            return NcclReceiver(
                group,
                payload,
                size,
                self._layout,
                device,
                on_chunk=chunk,
                on_lost=lost,
                on_fault=loop.fail,
            )
        layout: PayloadLayout | None = self._layout
        if "emulated" in kinds:
            # Only envelopes travel: there is no payload.
            size, layout = ENVELOPE_BYTES, None
        if rank == 0:
            return GlooSender(
                group, size, layout, on_credits=credits, on_lost=lost, on_fault=loop.fail
            )
        return GlooReceiver(group, size, layout, on_chunk=chunk, on_lost=lost, on_fault=loop.fail)
