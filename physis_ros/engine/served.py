"""What an engine node serves: models with their contracts and routes, and streams opened at start.

From the node's parameters (one model, one route) or from a deployment file. No ROS in here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from physis_core.deployment.deployment import ONLY_MODEL, Deployment
from physis_core.deployment.file import PlannedStream, load_deployment
from physis_core.deployment.profile import load_profile
from physis_core.model.registry import describe
from physis_core.plan.live import LiveAdmission, live_admission
from physis_core.types import UserError
from physis_ros.engine.parameters import EngineParameters
from physis_ros.engine.wam_codec import WamContract, wam_contract
from physis_ros.node.model_file import named_model
from physis_ros.robot.robot_files import check_robot_joints


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A policy, and the numbers of the routes that run it. `period_s`: between its chunks where a
    stream names no period; 0: it must name one.
    """

    name: str
    contract: WamContract
    period_s: float
    routes: tuple[int, ...]
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """`planned`: the streams of a deployment file, by id. `admission`: None: all are admitted."""

    deployment: Deployment
    models: Mapping[str, ServedModel]
    planned: Mapping[str, PlannedStream]
    admission: LiveAdmission | None

    def model(self, name: str) -> ServedModel:
        """The model of that name; an empty one stands for the only one.

        Raises:
            UserError: there is none, or there are several.
        """
        if not name and len(self.models) == 1:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise UserError("model", name, f"must be one of {', '.join(self.models)}")
        return self.models[name]


def served(params: EngineParameters) -> Served:
    """Raises UserError where a parameter or a field of the file does not fit."""
    return _from_file(params) if params.deployment else _from_parameters(params)


def _from_parameters(params: EngineParameters) -> Served:
    model = named_model(params.model)
    deployment = params.simple_deployment(
        model,
        workers_from=params.workers_from,
        front_host=params.front_host,
        front_port=params.front_port,
        bind_cores=params.bind_cores,
        recovery=params.recovery,
        snapshot_every=params.snapshot_every,
        respawns=params.respawns,
        silence_s=params.silence_s,
    )
    one = _served_model(params, deployment, ONLY_MODEL, params.model)
    if not one.period_s:
        raise UserError("period_s", params.period_s, "the model names none: set it")
    admission = None
    if params.profile:
        admission = live_admission(
            deployment,
            {ONLY_MODEL: load_profile(Path(params.profile).expanduser())},
            memory_bytes=params.device_memory_gib * 2**30 or math.inf,
            max_response_s=params.slo_response_s or math.inf,
        )
    return Served(deployment=deployment, models={ONLY_MODEL: one}, planned={}, admission=admission)


def _from_file(params: EngineParameters) -> Served:
    file = load_deployment(Path(params.deployment).expanduser())
    deployment = file.deployment
    models = {name: _served_model(params, deployment, name, name) for name in deployment.models}
    admission = None
    if set(file.profiles) == set(models):
        admission = live_admission(
            deployment,
            file.profiles,
            fast=file.fast,
            slow=file.slow,
            memory_bytes=file.memory_bytes,
            max_response_s=params.slo_response_s or math.inf,
            margin=file.margin,
        )
    return Served(
        deployment=deployment,
        models=models,
        planned={stream.stream_id: stream for stream in file.streams},
        admission=admission,
    )


def _served_model(
    params: EngineParameters, deployment: Deployment, name: str, shown: str
) -> ServedModel:
    described = describe(deployment.models[name])
    contract = wam_contract(shown, described)
    check_robot_joints(contract.joint_names, params.robot_file, params.joint_prefix)
    if params.lookahead_initial_s > contract.lookahead_max_s:
        raise UserError(
            "lookahead_initial_s",
            params.lookahead_initial_s,
            f"the model {shown} was trained for at most {contract.lookahead_max_s:g} s",
        )
    return ServedModel(
        name=name,
        contract=contract,
        period_s=params.period_s or described.period_s or 0.0,
        routes=tuple(n for n, route in enumerate(deployment.routes) if route.model == name),
        purpose=f"{described.steps} steps x {described.blocks} blocks",
    )
