"""Parameters of engine_node, with ranges and units; their values are in
config/engine_node.param.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

from physis_ros.engine.pipeline_parameters import PipelineParameters
from physis_ros.node.parameters import param


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParameters(PipelineParameters):
    model: str = param(
        "",
        description="What moves the robot, where no deployment is given: a file or folder that "
        "says what it is, a name in checkpoints/, or a registered family; cameras, joints, sizes "
        "and period come from it",
    )
    deployment: str = param(
        "",
        description="A deployment file (`physis plan --out`, or your own): models, devices, routes "
        "and streams come from it, in place of model, partition, devices, workers, profile and "
        "what else it states; empty: one model by the parameters",
    )
    workers_from: str = param(
        "spawn",
        description="spawn: start workers here; elsewhere: wait for them (torchrun, key in "
        "PHYSIS_KEY)",
        choices=("spawn", "elsewhere"),
    )
    front_host: str = param(
        "127.0.0.1", description="Address of this host for workers started elsewhere"
    )
    front_port: int = param(
        0, description="Port for these workers; 0: a free one", minimum=0, maximum=65535
    )
    bind_cores: bool = param(
        False,
        description="Pin each worker to its own cores, one per thread; for hosts that run "
        "nothing else",
    )
    recovery: str = param(
        "none",
        description="After a lost worker: none: the node ends and is restarted; otherwise the "
        "worker is restarted, and its streams go on with KV from a snapshot, or rebuilt from "
        "their outputs",
        choices=("none", "snapshot", "rebuild"),
    )
    snapshot_every: int = param(
        8, description="Chunks from one KV snapshot to the next", minimum=1, maximum=1_000_000
    )
    respawns: int = param(
        3,
        description="Restarts of one lost worker in a row before the engine gives up",
        minimum=1,
        maximum=100,
    )
    silence_s: float = param(
        1.0,
        description="A worker not heard of for so long counts as lost; one whose process runs, as "
        "this host shows, has at least 5 s",
        unit="s",
        minimum=0.5,
        maximum=3600.0,
    )
    stream_ids: tuple[str, ...] = param(("arm",), description="Streams (robots) opened at start")
    stream_namespaces: tuple[str, ...] = param(
        ("",), description="Namespace of each stream's topics, below the node's own"
    )
    period_s: float = param(
        0.0,
        description="Time between chunks (the SLO); 0: the model's training period",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    profile: str = param(
        "",
        description="Costs of the model's blocks (a file of `physis profile`): a stream is "
        "admitted only if it keeps its period beside the others; empty: admit all",
    )
    device_memory_gib: float = param(
        0.0,
        description="With a profile: memory of each device for weights, KV and activations; 0: "
        "not counted",
        unit="GiB",
        minimum=0.0,
        maximum=1e6,
    )
    slo_response_s: float = param(
        0.0,
        description="With a profile: longest response latency of a stream; 0: any",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    release: str = param(
        "periodic",
        description="When a chunk starts: once per period with the newest observation, or once per "
        "observation",
        choices=("periodic", "on_observation"),
    )
    refresh: str = param(
        "entry",
        description="Renew the condition at entry only, or at each denoising step",
        choices=("entry", "every_step"),
    )
    seed: int = param(0, description="Seed of the noise", minimum=0)
    max_age_s: float = param(
        0.5,
        description="An observation older than this since its entry starts no chunk",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    max_action_age_s: float = param(
        2.0,
        description="Largest action age up to which the pacer may hold a finished chunk",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    expected_response_s: float = param(
        0.1,
        description="Response latency assumed for deadlines before one is measured",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    margin_s: float = param(
        0.02,
        description="Added to the measured p99 of the response latency for deadlines",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    hold: bool = param(
        False,
        description="Hold chunks until their deadline; false: deliver at once (points carry their "
        "own times)",
    )
    lookahead_initial_s: float = param(
        0.15,
        description="Lookahead (capture to chunk exit) of the model before it is measured",
        unit="s",
        minimum=0.0,
        maximum=60.0,
    )
    lookahead_quantile: float = param(
        0.9,
        description="Quantile of the measured ages used as lookahead",
        minimum=0.01,
        maximum=0.99,
    )
    deadline_s: float = param(
        0.5,
        description="DDS deadline offered on action_chunk",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    lease_s: float = param(
        1.0,
        description="DDS liveliness lease offered on action_chunk",
        unit="s",
        minimum=0.1,
        maximum=3600.0,
    )
