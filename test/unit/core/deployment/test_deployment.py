from dataclasses import replace

import pytest

from physis_core.deployment.deployment import Deployment, DeviceSpec, Route, simple_deployment
from physis_core.model.registry import ModelRef, describe
from physis_core.pipeline.partition import make_partition
from physis_core.types import UserError

REF = ModelRef(family="synthetic", config={"steps": 3, "blocks": 4})


@pytest.mark.parametrize("kind", ["sequential", "step", "block", "stage", "grouped"])
def test_json_keeps_all(kind):
    deployment = simple_deployment(
        REF,
        partition=kind,
        devices=7,
        workers=3,
        device_kind="emulated",
        costs={b: {1: 0.001, 4: 0.002} for b in range(4)},
        noise=0.1,
        max_batch=4,
        recovery="snapshot",
        snapshot_every=5,
        respawns=2,
    )
    assert Deployment.from_json(deployment.to_json()) == deployment


def test_ranks_are_dealt_in_contiguous_runs_so_that_few_edges_cross_processes():
    deployment = simple_deployment(REF, partition="stage", devices=12, workers=2)
    workers = [d.worker for d in deployment.devices]
    assert workers == sorted(workers)
    assert workers.count(0) == workers.count(1) == 6
    assert deployment.remote_edges() == ((5, 6),)
    ring = simple_deployment(REF, partition="block", devices=4, workers=2)
    assert set(ring.remote_edges()) == {(1, 2), (3, 0)}


def test_a_device_holds_each_block_once():
    deployment = simple_deployment(REF, partition="block", devices=2)
    assert deployment.blocks_of(0) == {"model": (0, 1)}
    assert deployment.blocks_of(1) == {"model": (2, 3)}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_batch": 0}, "max_batch"),
        ({"credits": 0}, "credits"),
        ({"noise": 0.5}, "noise"),
        ({"noise": -0.1}, "noise"),
        ({"link": "smoke"}, "link"),
        ({"device_kind": "emulated"}, "costs"),
        ({"device_kind": "gpu"}, "device"),
        ({"partition": "diagonal"}, "partition"),
        ({"workers": -1}, "workers"),
        ({"recovery": "prayer"}, "recovery"),
        ({"recovery": "rebuild", "workers": 0}, "recovery"),
        ({"recovery": "snapshot", "workers": 1, "workers_from": "elsewhere"}, "recovery"),
        ({"snapshot_every": 0}, "snapshot_every"),
        ({"respawns": 0}, "respawns"),
    ],
)
def test_a_field_that_does_not_fit_is_named(options, field):
    with pytest.raises(UserError, match=field):
        simple_deployment(REF, **options)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{", "deployment"),
        ("[]", "deployment"),
        ("{}", "models"),
        (
            '{"models": {"m": {"family": "synthetic"}}, "devices": [], "routes": [], "colour": 1}',
            "colour",
        ),
        (
            '{"models": {"m": {"family": "wan"}}, "devices": [{"type": 1}], "routes": []}',
            "deployment",
        ),
    ],
)
def test_json_that_does_not_fit_is_one_line(text, field):
    with pytest.raises(UserError, match=field) as caught:
        Deployment.from_json(text)
    assert "\n" not in str(caught.value)


def test_a_worker_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="worker"):
        Deployment(
            models={"model": REF},
            devices=(DeviceSpec(kind="cpu", worker=2),),
            routes=simple_deployment(REF).routes,
            workers=2,
        )


def test_each_worker_has_a_gpu_of_its_own_and_its_devices_share_it():
    deployment = simple_deployment(REF, partition="stage", devices=8, workers=4, device_kind="cuda")
    assert [(d.kind, d.worker) for d in deployment.devices] == [
        (f"cuda:{worker}", worker) for worker in (0, 0, 1, 1, 2, 2, 3, 3)
    ]
    assert deployment.places()[1] == (0, 0, 1, 1, 2, 2, 3, 3)
    one = simple_deployment(REF, partition="stage", devices=2, workers=2, device_kind="cuda:1")
    assert one.places() == (("cuda:1",), (0, 0)), "two workers on one GPU where it is asked for"


def two_models(**options):
    small = ModelRef(family="synthetic", config={"steps": 2, "blocks": 2})
    large = ModelRef(family="synthetic", config={"steps": 3, "blocks": 4})
    routes = tuple(
        Route(
            partition=make_partition("block", describe(ref).graph, 2),
            device_of_rank=(0, 1),
            model=name,
        )
        for name, ref in (("small", small), ("large", large))
    )
    fields = {
        "models": {"small": small, "large": large},
        "devices": (DeviceSpec(kind="cpu"),) * 2,
        "routes": routes,
    }
    return Deployment(**{**fields, **options})


def test_each_block_of_each_model_has_its_own_key():
    deployment = two_models()
    assert deployment.first_keys() == {"small": 0, "large": 2}
    assert list(deployment.keys_of(0)) == [0, 1]
    assert list(deployment.keys_of(1)) == [2, 3, 4, 5]
    assert deployment.blocks_of(0) == {"small": (0,), "large": (0, 1)}
    assert Deployment.from_json(deployment.to_json()) == deployment


def test_a_model_without_a_route_and_a_route_without_a_model_are_refused():
    routes = two_models().routes
    with pytest.raises(UserError, match=r"models\.large: 'large': no route runs it"):
        two_models(routes=routes[:1])
    with pytest.raises(UserError, match=r"routes\[1\]\.model: 'large': must be one of small"):
        two_models(models={"small": two_models().models["small"]})
    with pytest.raises(UserError, match=r"routes\[2\].*its model has another graph"):
        two_models(routes=(*routes, replace(routes[0], model="large")))
