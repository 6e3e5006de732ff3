"""Parameters of nodes with an engine: partition of the pipeline, devices and workers.

Imports no torch: a launcher reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from physis_core.model.registry import ModelRef
from physis_ros.node.parameters import BaseParameters, param

if TYPE_CHECKING:
    from physis_core.deployment.deployment import Deployment


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineParameters(BaseParameters):
    robot_file: str = param(
        "",
        description="The robot's file (a name in config/robots, or a path): a model of other "
        "joints is refused; empty: not checked",
    )
    joint_prefix: str = param(
        "", description="In front of the joint names of robot_file, where the model leaves it out"
    )
    partition: str = param(
        "block",
        description="How stages are grouped into virtual ranks",
        choices=("sequential", "step", "block", "stage", "grouped"),
    )
    devices: int = param(
        2, description="Largest number of devices to partition for", minimum=1, maximum=4096
    )
    workers: int = param(
        2,
        description="Worker processes that share the devices; 0: all in the node's process",
        minimum=0,
        maximum=1024,
    )
    device_kind: str = param("cpu", description="cpu, cuda:N, or cuda: a GPU for each worker")
    link: str = param("gloo", description="Transport between workers", choices=("gloo", "nccl"))
    threads: int = param(1, description="Threads of each worker", minimum=1, maximum=256)
    max_batch: int = param(
        8, description="Largest number of stage tasks in one batch", minimum=1, maximum=1024
    )
    credits: int = param(
        2, description="Chunks of a stream that may wait between two devices", minimum=1, maximum=64
    )
    start_timeout_s: float = param(
        120.0,
        description="Longest time until all workers are warm",
        unit="s",
        minimum=1.0,
        maximum=3600.0,
    )

    def simple_deployment(self, model: ModelRef, **more: Any) -> Deployment:
        """A deployment of `model` with these parameters; `more`: further fields of Deployment."""
        from physis_core.deployment.deployment import simple_deployment

        return simple_deployment(
            model,
            partition=self.partition,
            devices=self.devices,
            workers=self.workers,
            device_kind=self.device_kind,
            link=self.link,
            threads=self.threads,
            max_batch=self.max_batch,
            credits=self.credits,
            **more,
        )
