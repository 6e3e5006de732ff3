"""Parameters of world_node; their values are in config/world_node.param.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from physis_ros.engine.pipeline_parameters import PipelineParameters
from physis_ros.node.parameters import REQUIRED, param

FREE = "free"
LOCKSTEP = "lockstep"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldParameters(PipelineParameters):
    model: str = param(
        REQUIRED,
        description="World model: a file or folder that says what it is, a name in checkpoints/, "
        "or a registered family; joints, sizes and rate come from it",
    )
    mode: str = param(
        FREE,
        description="free: frames follow ROS time and the trajectories that arrive; lockstep: a "
        "chunk for each call of world/step",
        choices=(FREE, LOCKSTEP),
    )
    prompt: str = param(
        "", description="What the worlds show at first, where the model takes a prompt; empty: none"
    )
    frame_hz: float = param(
        0.0,
        description="Frames a second that the loop expects; another rate than the model's is "
        "refused; 0: whatever it is",
        unit="Hz",
        minimum=0.0,
        maximum=1000.0,
    )
    stream_ids: tuple[str, ...] = param(("world",), description="Worlds opened at start")
    stream_namespaces: tuple[str, ...] = param(
        ("",), description="Namespace of each world's topics, below the node's own"
    )
    frame_id: str = param("world_optical", description="frame_id of frames and camera_info")
    jpeg_quality: int = param(
        90, description="Of the compressed frames", minimum=1, maximum=100, runtime=True
    )
    seed: int = param(0, description="Seed of the noise", minimum=0)
    partition: str = param(
        "block",
        description="How the stages are cut into virtual ranks",
        choices=("sequential", "step", "block", "stage"),
    )
