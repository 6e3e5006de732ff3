"""Observations in, action chunks out: the staged engine as a ROS node. One engine serves several
robots.

For each stream: `<namespace>/observation` in, `<namespace>/action_chunk` out; services
`open_stream` and `close_stream`. A model or parameter that does not fit ends the process with exit
code 2 (with `autostart`), or leaves the node unconfigured. A lost worker ends it with exit code 1:
the supervisor starts it anew with empty KV and higher epochs. A stream that failed by its own
input is opened again, in a new epoch, and no other stream stops.

Threads: observations and services on the executor; chunks and events on the engine's thread.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import rclpy.validate_namespace
from rclpy.exceptions import InvalidNamespaceException

from physis_core.model.loading import ModelRef
from physis_core.model.tiny.checkpoint import read_config
from physis_core.runtime.deployment import simple_deployment
from physis_core.runtime.engine import Engine, EngineEvent
from physis_core.runtime.stream import StreamConfig
from physis_core.types import FinishedChunk, Percentiles, Refresh, Refused, UserError
from physis_ros.checkpoint_file import checkpoint_path
from physis_ros.conversions.time import SteadyToRos
from physis_ros.interfaces import (
    ACTION_CHUNK_DEADLINE_S,
    ACTION_CHUNK_LEASE_S,
    CLOSE_STREAM,
    OPEN_STREAM,
    action_chunk,
)
from physis_ros.lookahead import LookaheadConfig
from physis_ros.nodes.base import (
    ERROR,
    EXIT_FAULT,
    OK,
    WARN,
    BaseParameters,
    Diagnosis,
    PhysisNode,
    main,
)
from physis_ros.nodes.engine_stream import EngineStream
from physis_ros.params import param
from physis_ros.srv import CloseStream, OpenStream
from physis_ros.wam_codec import WamContract

_HOUSEKEEPING_PERIOD_S = 0.5
_LONGEST_REASON = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParameters(BaseParameters):
    checkpoint: str = param(
        "physis_tiny_follow", description="Checkpoint: a path, or a name in checkpoints/"
    )
    partition: str = param(
        "block",
        description="How the stages are cut into virtual ranks",
        choices=("sequential", "step", "block", "stage", "grouped"),
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
        2, description="Chunks of a stream that may wait between two devices", minimum=1, maximum=64
    )
    start_timeout_s: float = param(
        120.0,
        description="Longest time until all workers are warm",
        unit="s",
        minimum=1.0,
        maximum=3600.0,
    )
    stream_ids: tuple[str, ...] = param(("arm",), description="Streams (robots) opened at start")
    stream_namespaces: tuple[str, ...] = param(
        ("",), description="Namespace of each stream's topics, below the node's own"
    )
    period_s: float = param(
        0.0,
        description="Time between chunks (the SLO); 0: what the checkpoint was trained for",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    refresh: str = param(
        "entry",
        description="Whether conditioning is renewed at each denoising step",
        choices=("entry", "every_step"),
    )
    seed: int = param(0, description="Seed of the noise", minimum=0)
    max_age_s: float = param(
        0.5,
        description="An observation that entered longer ago than this starts no chunk",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    max_action_age_s: float = param(
        2.0,
        description="Caps how long the pacer may hold a finished chunk",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    expected_response_s: float = param(
        0.1,
        description="Response latency that deadlines assume before one was measured",
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
        description="Capture to chunk exit that the model is told before it was measured",
        unit="s",
        minimum=0.0,
        maximum=60.0,
    )
    lookahead_quantile: float = param(
        0.9, description="Quantile of the measured ages that is told", minimum=0.01, maximum=0.99
    )
    deadline_s: float = param(
        ACTION_CHUNK_DEADLINE_S,
        description="DDS deadline offered on action_chunk",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    lease_s: float = param(
        ACTION_CHUNK_LEASE_S,
        description="DDS liveliness lease offered on action_chunk",
        unit="s",
        minimum=0.01,
        maximum=3600.0,
    )


class EngineNode(PhysisNode[EngineParameters]):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__("engine_node", EngineParameters)
        self._engine: Engine | None = None
        self._contract: WamContract | None = None
        self._streams: dict[str, EngineStream] = {}
        self._period_s = 0.0
        self._failed: set[str] = set()
        self._notes: dict[str, int] = {}
        self._lost = ""
        self._timer: Any = None
        self._services_made: list[Any] = []
        self._last_epoch: dict[str, int] = {}

    def validate_parameters(self, new: EngineParameters) -> None:
        ids, namespaces = new.stream_ids, new.stream_namespaces
        if len(ids) != len(namespaces):
            raise UserError(
                "stream_namespaces", list(namespaces), f"needs one for each of {list(ids)}"
            )
        for name, values in (("stream_ids", ids), ("stream_namespaces", namespaces)):
            if len(set(values)) != len(values):
                raise UserError(name, list(values), "holds a value twice")
        for namespace in namespaces:
            _check_namespace("stream_namespaces", namespace)

    def configure(self) -> None:
        params = self.params
        path = checkpoint_path(params.checkpoint)
        config = read_config(path)
        self._contract = WamContract(
            camera_names=config.camera_names,
            joint_names=config.joint_names,
            image_size=config.image_size,
            action_steps=config.action_steps,
            step_s=config.step_s,
            period_s=config.period_s,
            lookahead_max_s=config.lookahead_max_s,
        )
        self._period_s = params.period_s or config.period_s
        if params.lookahead_initial_s > config.lookahead_max_s:
            raise UserError(
                "lookahead_initial_s",
                params.lookahead_initial_s,
                f"the model was trained for at most {config.lookahead_max_s:g} s",
            )
        deployment = simple_deployment(
            ModelRef(kind="tiny", checkpoint=str(path)),
            partition=params.partition,
            devices=params.devices,
            workers=params.workers,
            device_kind=params.device_kind,
            link=params.link,
            threads=params.threads,
            max_batch=params.max_batch,
            credits=params.credits,
        )
        self._engine = Engine(deployment, on_chunk=self._on_chunk, on_event=self._on_event)
        try:
            self._engine.start(timeout_s=params.start_timeout_s)
        except TimeoutError as error:
            raise UserError(
                "start_timeout_s", params.start_timeout_s, f"the workers are not ready: {error}"
            ) from error
        self.get_logger().info(
            f"{path.name}: {config.steps} steps x {config.blocks} blocks, {params.partition} over "
            f"{len(deployment.devices)} devices in {deployment.workers} workers; "
            f"warm-up {self._engine.warmup_s:.2f} s"
        )

    def activate(self) -> None:
        for stream_id, namespace in zip(self.params.stream_ids, self.params.stream_namespaces):
            refused = self._open(stream_id, namespace, self._period_s, instruction="", priority=0)
            if refused is not None:
                raise UserError("stream_ids", stream_id, refused.reason)
        self._services_made = [
            self.create_service(OPEN_STREAM.type, OPEN_STREAM.name, self._serve_open),
            self.create_service(CLOSE_STREAM.type, CLOSE_STREAM.name, self._serve_close),
        ]
        self._timer = self.steady_timer(_HOUSEKEEPING_PERIOD_S, self._keep_house)

    def deactivate(self) -> None:
        if self._timer is not None:
            self.destroy_timer(self._timer)
            self._timer = None
        for service in self._services_made:
            self.destroy_service(service)
        self._services_made = []
        for stream_id in list(self._streams):
            self._close(stream_id, drain=False)

    def cleanup(self) -> None:
        self.deactivate()
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._contract = None
        self._notes.clear()

    def on_clock_jump(self, delta_s: float) -> None:
        if self._engine is None:
            return
        for stream in self._streams.values():
            self._engine.restart_stream(stream.stream_id, f"ROS time jumped by {delta_s:+.3f} s")
            stream.restarted()

    # Streams -----------------------------------------------------------------------------------

    def _open(
        self, stream_id: str, namespace: str, period_s: float, *, instruction: str, priority: int
    ) -> Refused | None:
        assert self._engine is not None, "streams live between configure and cleanup"
        assert self._contract is not None, "streams live between configure and cleanup"
        params = self.params
        stream = self._streams.get(stream_id)
        epoch_base = self._new_epoch_base(stream_id)
        if stream is None:
            # Its topics come first: a chunk may leave as soon as the engine knows the stream.
            stream = EngineStream(
                self,
                self._engine,
                self._contract,
                stream_id=stream_id,
                namespace=namespace,
                chunk_topic=action_chunk(params.deadline_s, params.lease_s),
                lookahead=LookaheadConfig(
                    initial_s=params.lookahead_initial_s,
                    max_s=self._contract.lookahead_max_s,
                    quantile=params.lookahead_quantile,
                ),
                epoch_base=epoch_base,
                clock=self._clock_pair,
            )
            self._streams[stream_id] = stream
        else:
            stream.reopened(epoch_base)
        opened = self._engine.open_stream(
            StreamConfig(
                stream_id=stream_id,
                period_s=period_s,
                seed=params.seed,
                refresh=cast(Refresh, params.refresh),
                priority=priority,
                condition={"instruction": instruction} if instruction else {},
                max_age_s=params.max_age_s,
                max_action_age_s=params.max_action_age_s,
                expected_response_s=params.expected_response_s,
                margin_s=params.margin_s,
                hold=params.hold,
            ),
            timeout_s=5.0,
        )
        if isinstance(opened, Refused):
            stream.destroy()
            del self._streams[stream_id]
            return opened
        stream.instruction = instruction
        stream.period_s = period_s
        stream.priority = priority
        return None

    def _new_epoch_base(self, stream_id: str) -> int:
        """Above every epoch of this stream, also in processes that are no more: wall seconds."""
        stream = self._streams.get(stream_id)
        last = stream.epoch if stream is not None else self._last_epoch.get(stream_id, 0)
        return max(int(time.time()), last + 1)

    def _close(self, stream_id: str, drain: bool) -> bool:
        stream = self._streams.get(stream_id)
        if stream is None or self._engine is None:
            return False
        closed = self._engine.close_stream(stream_id, drain=drain, timeout_s=5.0)
        self._streams.pop(stream_id)
        self._last_epoch[stream_id] = stream.epoch
        self._failed.discard(stream_id)
        stream.destroy()
        return closed

    def _serve_open(
        self, request: OpenStream.Request, response: OpenStream.Response
    ) -> OpenStream.Response:
        stream_id = request.stream_id
        configured = dict(zip(self.params.stream_ids, self.params.stream_namespaces))
        namespace = configured.get(stream_id, stream_id)
        try:
            if stream_id in self._streams:
                raise UserError("stream_id", stream_id, "is open already")
            if not math.isfinite(request.period_s) or request.period_s < 0.0:
                raise UserError("period_s", request.period_s, "must be above 0, or 0: the default")
            _check_namespace("stream_id", namespace)
            refused = self._open(
                stream_id,
                namespace,
                request.period_s or self._period_s,
                instruction=request.instruction,
                priority=int(request.priority),
            )
        except UserError as error:
            refused = Refused(reason=str(error))
        response.admitted = refused is None
        if refused is not None:
            parts = (refused.reason, refused.short_resource, refused.device, refused.nearest)
            response.reason = "; ".join(part for part in parts if part)
        else:
            response.epoch = self._streams[stream_id].epoch
        return response

    def _serve_close(
        self, request: CloseStream.Request, response: CloseStream.Response
    ) -> CloseStream.Response:
        if request.stream_id not in self._streams:
            response.reason = f"stream_id: {request.stream_id!r}: no such stream"
            return response
        response.closed = self._close(request.stream_id, drain=request.drain)
        response.reason = "" if response.closed else "did not drain in time; cancelled"
        return response

    # The engine's thread -----------------------------------------------------------------------

    def _on_chunk(self, chunk: FinishedChunk) -> None:
        stream = self._streams.get(chunk.stream_id)
        if stream is not None:
            stream.take_chunk(chunk)

    def _on_event(self, event: EngineEvent) -> None:
        self._notes[event.kind] = self._notes.get(event.kind, 0) + max(event.count, 1)
        if event.kind in ("worker_lost", "edge_lost"):
            # The edges of a dead worker are lost with it, and may be noticed first.
            if not self._lost or event.kind == "worker_lost":
                self._lost = f"worker {event.worker} is lost: {_short(event.reason)}"
        elif event.kind == "stream_failed":
            self._failed.add(event.stream_id)
            self.get_logger().error(f"{event.stream_id}: stream failed: {_short(event.reason)}")
        elif event.kind == "overload":
            self.get_logger().warning(f"overload: {event.reason}")

    def _clock_pair(self) -> SteadyToRos:
        return SteadyToRos(ros_ns=self.now_ns(), steady_s=self.steady_s())

    # Housekeeping ------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        if self._lost:
            self.set_fault(self._lost)
            self.publish_diagnostics()
            self.request_exit(EXIT_FAULT, f"{self._lost}; ending, to be started anew")
            return
        for stream_id in list(self._failed):
            self._failed.discard(stream_id)
            stream = self._streams.get(stream_id)
            if stream is None:
                continue
            refused = self._open(
                stream_id,
                stream.namespace,
                stream.period_s,
                instruction=stream.instruction,
                priority=stream.priority,
            )
            if refused is not None:
                self.get_logger().error(f"{stream_id}: not opened again: {refused.reason}")

    def diagnose(self) -> Sequence[Diagnosis]:
        if self._engine is None or not self.active:
            return ()
        status = self._engine.status()
        level, message = (OK, "running") if status.running else (ERROR, "the engine does not run")
        if self._lost:
            level, message = ERROR, self._lost
        found = [
            Diagnosis(
                part="engine",
                level=level,
                message=message,
                values={
                    "workers_alive": f"{len(status.workers_alive)} of {status.workers}",
                    "warmup_s": f"{status.warmup_s:.3f}",
                    "overload": status.overload.level,
                    **self._notes,
                },
            )
        ]
        figures = {figure.stream_id: figure for figure in status.streams}
        for stream in list(self._streams.values()):
            figure = figures.get(stream.stream_id)
            stream_level, text = OK, "streaming"
            if stream.reason:
                stream_level, text = WARN, stream.reason
            elif not stream.observations:
                stream_level, text = WARN, "no observation yet"
            elif stream.lookahead_capped:
                stream_level = WARN
                text = "capture to exit takes longer than the model can look ahead"
            values: dict[str, object] = {
                "epoch": stream.epoch,
                "observations": stream.observations,
                "chunks": stream.chunks,
                "refused": stream.refused,
                "lookahead_s": f"{stream.lookahead_s:.4f}",
            }
            if figure is not None:
                values["state"] = figure.state.value
                values["in_flight"] = figure.in_flight
                values["misses"] = figure.misses
                values["dropped"] = figure.dropped
                values["output_interval_ms"] = _in_ms(figure.interval_s)
                values["response_latency_ms"] = _in_ms(figure.response_s)
            part = f"stream {stream.stream_id}"
            found.append(Diagnosis(part=part, level=stream_level, message=text, values=values))
        return found


def _short(reason: str) -> str:
    """One line of a reason that a library may have written over many."""
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."


def _in_ms(seconds: Percentiles) -> str:
    if not seconds.n:
        return "none yet"
    return f"p50 {1e3 * seconds.p50:.1f}, p99 {1e3 * seconds.p99:.1f}, max {1e3 * seconds.max:.1f}"


def _check_namespace(field: str, namespace: str) -> None:
    if not namespace:
        return
    try:
        rclpy.validate_namespace.validate_namespace(f"/{namespace.strip('/')}")
    except InvalidNamespaceException as error:
        reason = " ".join(str(error).split())
        raise UserError(field, namespace, f"is no ROS namespace ({reason})") from error


if __name__ == "__main__":
    sys.exit(main(EngineNode))
