"""What follows from a route: which workers and edges a stream depends on, whether all are there,
and how many chunks keep it busy.
"""

from __future__ import annotations

from physis_core.deployment.deployment import Deployment
from physis_core.engine.respawn_plan import Edge, RespawnPlan
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
    graph = deployment.graph_of(config.route)
    route = deployment.routes[config.route]
    if graph.kv == "clean":
        return 2
    crossings = sum(route.device_of(s) != route.device_of(s + 1) for s in range(graph.stages - 1))
    batched = graph.passes if deployment.max_batch > 1 else 1
    return max(batched, crossings + 1) + 1


class RouteHealth:
    """What the plan knows, by route. Only edges that cross processes can be lost."""

    def __init__(self, deployment: Deployment) -> None:
        worker_of = [device.worker for device in deployment.devices]
        ends = {(a, b): (worker_of[a], worker_of[b]) for a, b in deployment.remote_edges()}
        self.plan = RespawnPlan(range(max(deployment.workers, 1)), ends, deployment.respawns)
        self._workers = [
            frozenset(workers_of(deployment, r)) for r in range(len(deployment.routes))
        ]
        self._edges: list[frozenset[Edge]] = [
            frozenset(edge for edge in ends if edge in edges_of(deployment, r))
            for r in range(len(deployment.routes))
        ]

    def workers(self, route: int) -> frozenset[int]:
        return self._workers[route]

    def edges(self, route: int) -> frozenset[Edge]:
        return self._edges[route]

    def whole(self, route: int) -> bool:
        return not self.trouble(route)

    def trouble(self, route: int) -> str:
        """Why no chunk can walk the route now; empty where one can."""
        for worker in sorted(self._workers[route]):
            if not self.plan.worker_up(worker):
                return f"worker {worker} is lost"
        for edge in sorted(self._edges[route]):
            if not self.plan.edge_whole(edge):
                return f"edge {edge[0]} -> {edge[1]} is lost"
        return ""

    def given_up(self, route: int) -> bool:
        """Whether it will never be whole again."""
        return self.plan.given_up(self._workers[route], self._edges[route])

    def changes(self, route: int) -> int:
        """A number that is another one after any loss on the route, also one that was made good."""
        return self.plan.losses(self._workers[route], self._edges[route])
