"""Which streams a loss touches: those whose route needs what was lost."""

from __future__ import annotations

import pytest

from physis_core.deployment.deployment import Deployment, DeviceSpec, Route
from physis_core.engine.respawn_plan import RelinkEdge, Respawn
from physis_core.engine.routes import RouteHealth
from physis_core.model.loading import load_spec
from physis_core.model.registry import ModelRef
from physis_core.pipeline.partition import make_partition

OVER_BOTH, ALONE = 0, 1


@pytest.fixture
def health():
    ref = ModelRef(family="synthetic", config={"steps": 2, "blocks": 2})
    graph = load_spec(ref).graph
    return RouteHealth(
        Deployment(
            models={"model": ref},
            devices=tuple(DeviceSpec(kind="cpu", worker=w) for w in range(3)),
            routes=(
                Route(partition=make_partition("block", graph, 2), device_of_rank=(0, 1)),
                Route(partition=make_partition("sequential", graph, 1), device_of_rank=(2,)),
            ),
            workers=3,
            recovery="rebuild",
        )
    )


def test_a_lost_worker_is_trouble_for_its_routes_alone(health):
    changes = [health.changes(route) for route in (OVER_BOTH, ALONE)]
    health.plan.worker_lost(1, 0, 0.0)
    assert health.trouble(OVER_BOTH) == "worker 1 is lost"
    assert health.whole(ALONE)
    assert health.changes(OVER_BOTH) != changes[OVER_BOTH]
    assert health.changes(ALONE) == changes[ALONE]


def test_a_loss_that_was_made_good_still_shows_as_a_change(health):
    before = health.changes(OVER_BOTH)
    health.plan.worker_lost(1, 0, 0.0)
    (respawn,) = health.plan.due(0.0)
    assert isinstance(respawn, Respawn)
    health.plan.worker_ready(1, respawn.incarnation, 1.0)
    assert health.trouble(OVER_BOTH) == "edge 0 -> 1 is lost"
    for action in health.plan.due(1.0):
        assert isinstance(action, RelinkEdge)
        for end in health.plan.ends(action.edge):
            health.plan.edge_linked(action.edge, action.generation, end, 1.0)
    assert health.whole(OVER_BOTH)
    assert health.changes(OVER_BOTH) != before


def test_edges_within_one_process_cannot_be_lost(health):
    assert health.edges(OVER_BOTH) == {(0, 1), (1, 0)}
    assert health.edges(ALONE) == set()
    assert health.workers(OVER_BOTH) == {0, 1}
