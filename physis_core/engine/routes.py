"""What follows from a route: which workers and edges a stream depends on, how many chunks keep it
busy.
"""

from __future__ import annotations

from physis_core.deployment.deployment import Deployment
from physis_core.engine.stream import StreamConfig


def workers_of(deployment: Deployment, route: int) -> set[int]:
    return {deployment.devices[d].worker for d in deployment.routes[route].device_of_rank}


def edges_of(deployment: Deployment, route: int) -> set[tuple[int, ...]]:
    """(source device, destination device) pairs that chunks of the route cross."""
    way = deployment.routes[route]
    return {(way.device_of_rank[a], way.device_of_rank[b]) for a, b in way.partition.edges()}


def room(deployment: Deployment, config: StreamConfig) -> int:
    """Chunks that keep the whole route busy: one per run of stages, and one more to hand over."""
    if config.max_in_flight is not None:
        return config.max_in_flight
    graph = deployment.graph
    route = deployment.routes[config.route]
    if graph.kv == "clean":
        return 2
    crossings = sum(route.device_of(s) != route.device_of(s + 1) for s in range(graph.stages - 1))
    batched = graph.passes if deployment.max_batch > 1 else 1
    return max(batched, crossings + 1) + 1
