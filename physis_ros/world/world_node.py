"""Commanded actions in, frames out: the world model as a ROS node, for a simulator's loop.

For each world: `<namespace>/world/command` in (free-running), and `<namespace>/world/frame`,
`world/frame/compressed`, `world/camera_info` out, each stamped with the instant that it depicts.
Services `world/reset` (a first frame and its joints) and `world/step` (lockstep: one chunk of
actions, and its frames back) name the world by its `stream_id`. Nothing leaves a world before its
first reset, where the model needs a first frame or moves joints. Where the model takes a prompt,
`world/prompt` changes it. Several worlds are streams of one engine.

A model or parameter that does not fit ends the process with exit code 2 (with `autostart`), or
leaves the node unconfigured. A stream that fails ends it with exit code 1.

Threads: ROS callbacks on the executor; chunks and events on the engine's thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sensor_msgs.msg import Image

from physis_core.engine.engine import Engine, EngineEvent
from physis_core.engine.stream import StreamConfig, StreamFigures
from physis_core.model.description import COMMANDS, FRAMES
from physis_core.model.registry import FrameEncoder, describe, family
from physis_core.types import Array, FinishedChunk, Refused, UserError
from physis_ros.engine.life import (
    check_stream_names,
    destroy_handlers,
    let_engine_threads_run,
    start_engine,
)
from physis_ros.engine.metrics import EngineMetrics
from physis_ros.node.base import EXIT_FAULT, OK, WARN, Diagnosis, PhysisNode, main
from physis_ros.node.image_messages import image_to_rgb, rgb_to_image
from physis_ros.node.interfaces import WORLD_RESET, WORLD_STEP
from physis_ros.node.metric_names import Sample
from physis_ros.node.model_file import named_model
from physis_ros.node.system import give_back_memory
from physis_ros.node.threads import OnDemandThread
from physis_ros.node.time_messages import ns_to_time, time_to_ns
from physis_ros.robot.robot_files import check_robot_joints
from physis_ros.srv import ResetWorld, StepWorld
from physis_ros.world.codec import (
    WorldContract,
    check_rate,
    checked_first_frame,
    start_positions,
    step_actions,
    world_contract,
)
from physis_ros.world.parameters import FREE, LOCKSTEP, WorldParameters
from physis_ros.world.stream import World

_LOOK_PERIOD_S = 0.004
"""How often worlds are asked whether a chunk or a frame is due: a fraction of the time between
frames."""


class WorldNode(PhysisNode[WorldParameters]):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__("world_node", WorldParameters)
        self._engine: Engine | None = None
        self._metrics_of: EngineMetrics | None = None
        self._contract: WorldContract | None = None
        self._encode: FrameEncoder | None = None
        self._worlds: dict[str, World] = {}
        self._last_epoch: dict[str, int] = {}
        self._services_made: list[Any] = []
        self._timer: Any = None
        self._prompts: OnDemandThread | None = None

    def validate_parameters(self, new: WorldParameters) -> None:
        check_stream_names(new.stream_ids, new.stream_namespaces)

    # Life cycle --------------------------------------------------------------------------------

    def configure(self) -> None:
        params = self.params
        model = named_model(params.model)
        described = describe(model)
        contract = world_contract(params.model, described)
        if params.prompt and not contract.takes_prompt:
            raise UserError("prompt", params.prompt, f"the model {params.model} takes none")
        check_robot_joints(contract.joint_names, params.robot_file, params.joint_prefix)
        check_rate(contract, params.frame_hz)
        deployment = params.simple_deployment(model)
        self._contract = contract
        self._engine = Engine(deployment, on_chunk=self._on_chunk, on_event=self._on_event)
        # After the engine: its workers import torch at the same time.
        import torch

        torch.set_num_threads(1)
        if contract.first_frame != "none":
            self._encode = family(model.family).frame_encoder(model)
        log = self.get_logger()
        start_engine(self._engine, params.start_timeout_s, self.stopping, log.info)
        log.info(
            f"{model.label}: {described.steps} steps x {described.blocks} blocks, "
            f"{params.partition} over "
            f"{len(deployment.devices)} devices in {deployment.workers} workers; a chunk is "
            f"{contract.frames} frames at {contract.frame_hz:g} Hz; "
            f"warm-up {self._engine.warmup_s:.2f} s"
        )

    def activate(self) -> None:
        let_engine_threads_run()
        engine, contract = self._engine, self._contract
        assert engine is not None and contract is not None, "activate follows configure"
        if self.params.metrics_port:
            self._metrics_of = EngineMetrics(engine, self._metrics_failed)
        self._prompts = OnDemandThread("physis-prompt", self._follow_prompts, self._prompts_failed)
        self._prompts.start()
        for stream_id, namespace in zip(self.params.stream_ids, self.params.stream_namespaces):
            self._worlds[stream_id] = World(
                self,
                engine,
                contract,
                stream_id=stream_id,
                namespace=namespace,
                free=self.params.mode == FREE,
                epoch_base=max(int(time.time()), self._last_epoch.get(stream_id, 0) + 1),
                prompts=self._prompts,
            )
            prompt = self.params.prompt
            opened = engine.open_stream(
                StreamConfig(
                    stream_id=stream_id,
                    release="on_observation",
                    seed=self.params.seed,
                    condition={"prompt": prompt} if prompt else {},
                )
            )
            if isinstance(opened, Refused):
                self.deactivate()
                raise UserError("stream_ids", stream_id, opened.reason)
            if not contract.waits_for_reset:
                self._worlds[stream_id].begin(self._blank(), self.now_ns())
        self._services_made = [
            self.create_service(WORLD_RESET.type, WORLD_RESET.name, self._serve_reset),
            self.create_service(WORLD_STEP.type, WORLD_STEP.name, self._serve_step),
        ]
        self._timer = self.steady_timer(_LOOK_PERIOD_S, self._look)

    def deactivate(self) -> None:
        destroy_handlers(self, self._timer, self._services_made)
        if self._metrics_of is not None:
            self._metrics_of.close()
            self._metrics_of = None
        if self._prompts is not None:
            self._prompts.stop()
        self._prompts = None
        self._timer = None
        self._services_made = []
        for stream_id, world in self._worlds.items():
            if self._engine is not None and not self._engine.failure:
                self._engine.close_stream(stream_id, drain=False)
            self._last_epoch[stream_id] = world.epoch
            world.destroy()
        self._worlds = {}

    def cleanup(self) -> None:
        self.deactivate()
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._contract = None
        self._encode = None
        give_back_memory()

    def on_clock_jump(self, delta_s: float) -> None:
        for world in self._worlds.values():
            world.clock_jumped(self.now_ns())

    # Services ----------------------------------------------------------------------------------

    def _serve_reset(
        self, request: ResetWorld.Request, response: ResetWorld.Response
    ) -> ResetWorld.Response:
        try:
            world, contract = self._world(request.stream_id)
            first = self._first_tensors(contract, request.first_frame)
            start = start_positions(contract, request.joint_names, request.positions)
        except UserError as error:
            response.reason = str(error)
            return response
        now_ns = self.now_ns()
        stamp_ns = time_to_ns(request.first_frame.header.stamp)
        response.epoch = world.reset(first, start, first_ns=stamp_ns or now_ns, now_ns=now_ns)
        response.success = True
        return response

    def _first_tensors(self, contract: WorldContract, image: Image) -> Mapping[str, Array]:
        """Raises UserError where the model takes no first frame, or needs one of another size."""
        if image.height == 0 and contract.first_frame != "required":
            return self._blank()
        if self._encode is None:
            raise UserError(
                "first_frame",
                f"{image.width}x{image.height}",
                "the model takes none; leave it empty",
            )
        rgb = image_to_rgb(image, field="first_frame")
        return self._encode(checked_first_frame(contract, rgb))

    def _blank(self) -> dict[str, Array]:
        """The observation of a world that begins without a first frame."""
        assert self._engine is not None, "a world is open only after configure"
        return {
            name: np.zeros(spec.shape, dtype=str(spec.dtype).removeprefix("torch."))
            for name, spec in self._engine.spec_of(0).observation.items()
            if name != COMMANDS
        }

    async def _serve_step(
        self, request: StepWorld.Request, response: StepWorld.Response
    ) -> StepWorld.Response:
        try:
            world, contract = self._world(request.stream_id)
            if self.params.mode != LOCKSTEP:
                raise UserError("mode", self.params.mode, f"world/step needs mode {LOCKSTEP}")
            actions = step_actions(contract, request.joint_names, request.positions)
            chunk, stamps = await world.step(actions)
        except UserError as error:
            response.reason = str(error)
            return response
        response.success = True
        response.chunk_id = chunk.chunk_id
        response.frames = [
            rgb_to_image(frame, stamp=ns_to_time(ns), frame_id=self.params.frame_id)
            for frame, ns in zip(chunk.outputs[FRAMES], stamps, strict=True)
        ]
        return response

    def _world(self, stream_id: str) -> tuple[World, WorldContract]:
        """Raises UserError: there is no such world."""
        world = self._worlds.get(stream_id)
        if world is None or self._contract is None:
            there = ", ".join(sorted(self._worlds)) or "none; the node is not active"
            raise UserError("stream_id", stream_id, f"no such world; there is {there}")
        return world, self._contract

    # Work --------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._engine is not None and self._engine.failure:
            self.request_exit(EXIT_FAULT, self._engine.failure)
            return
        now_ns, now_s = self.now_ns(), self.steady_s()
        for world in self._worlds.values():
            world.go_on(now_ns)
            world.publish_due(now_s)

    def _follow_prompts(self) -> None:
        """In the thread of prompts."""
        for world in list(self._worlds.values()):
            world.follow_prompt()

    def _prompts_failed(self, error: Exception) -> None:
        self.request_exit(EXIT_FAULT, f"prompt: {type(error).__name__}: {error}")

    def _on_chunk(self, chunk: FinishedChunk) -> None:
        """On the engine's thread."""
        metrics = self._metrics_of
        if metrics is not None:
            metrics.chunk(chunk)
        world = self._worlds.get(chunk.stream_id)
        if world is not None:
            world.take_chunk(chunk)

    def _on_event(self, event: EngineEvent) -> None:
        """On the engine's thread."""
        if event.kind == "stream_failed":
            reason = " ".join(event.reason.split())
            self.request_exit(EXIT_FAULT, f"{event.stream_id}: stream failed: {reason}")
        elif event.kind == "overload":
            self.get_logger().warning(f"overload: {event.reason}")

    def waits_for(self) -> str:
        waiting = [name for name, world in self._worlds.items() if not world.begun]
        return f"world/reset of {', '.join(waiting)}" if waiting else ""

    def _metrics_failed(self, error: Exception) -> None:
        self.request_exit(EXIT_FAULT, f"metrics: {type(error).__name__}: {error}")

    def metrics(self) -> Iterable[Sample]:
        return () if self._metrics_of is None else self._metrics_of.samples()

    def diagnose(self) -> Sequence[Diagnosis]:
        if self._engine is None or not self.active:
            return ()
        figures = {figure.stream_id: figure for figure in self._engine.status().streams}
        return [self._diagnosis(world, figures.get(name)) for name, world in self._worlds.items()]

    def _diagnosis(self, world: World, figures: StreamFigures | None) -> Diagnosis:
        values: dict[str, object] = {
            "epoch": world.epoch,
            "frames": world.frames_out,
            "frames_lost": world.frames_lost,
            "chunks_skipped": world.skipped,
            "refused": world.refused,
        }
        if figures is not None:
            values["chunks"] = figures.delivered
            values["chunks_superseded"] = figures.superseded
            values["output_interval_p50_ms"] = f"{1e3 * figures.interval_s.p50:.1f}"
            values["response_latency_p50_ms"] = f"{1e3 * figures.response_s.p50:.1f}"
        said = world.reason
        if not said and not world.begun:
            said = "waits for world/reset"
        return Diagnosis(
            part=f"world {world.stream_id}", level=WARN if said else OK, message=said, values=values
        )


if __name__ == "__main__":
    sys.exit(main(WorldNode))
