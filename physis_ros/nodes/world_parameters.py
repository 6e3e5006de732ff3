"""Parameters of world_node; their values are in config/world_node.param.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from physis_ros.nodes.base import BaseParameters
from physis_ros.params import param

FREE = "free"
LOCKSTEP = "lockstep"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldParameters(BaseParameters):
    checkpoint: str = param(
        "physis_tiny_world", description="World model: a path, or a name in checkpoints/"
    )
    mode: str = param(
        FREE,
        description="free: frames follow ROS time and the trajectories that arrive; lockstep: a "
        "chunk for each call of world/step",
        choices=(FREE, LOCKSTEP),
    )
    frame_hz: float = param(
        0.0,
        description="Frames a second that the loop expects; another rate than the checkpoint's is "
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
    devices: int = param(2, description="Most devices to cut for", minimum=1, maximum=4096)
    workers: int = param(
        2,
        description="Worker processes that share the devices; 0: all in the node's own process",
        minimum=0,
        maximum=1024,
    )
    device_kind: str = param("cpu", description="cpu, or cuda:N")
    link: str = param("gloo", description="Transport between workers", choices=("gloo", "nccl"))
    threads: int = param(1, description="Threads of each worker", minimum=1, maximum=256)
    max_batch: int = param(8, description="Most stage tasks in one batch", minimum=1, maximum=1024)
    credits: int = param(
        2, description="Chunks of a world that may wait between two devices", minimum=1, maximum=64
    )
    start_timeout_s: float = param(
        120.0,
        description="Longest time until all workers are warm",
        unit="s",
        minimum=1.0,
        maximum=3600.0,
    )
