"""Observations in, action chunks out: the staged engine as a ROS node. One engine serves several
robots.

For each stream: `<namespace>/observation` in, `<namespace>/action_chunk` out; services
`open_stream` and `close_stream`. A model or parameter that does not fit ends the process with exit
code 2 (with `autostart`), or leaves the node unconfigured. A lost worker ends it with exit code 1
(with `recovery` other than `none` only one that does not stay up), and so does an engine that fails
by an error of its own: the supervisor starts it anew with empty KV and higher epochs. A stream that
failed by its own input is opened again, in a new epoch, and no other stream stops.

Threads: observations and services on the executor, which never waits for the engine; chunks and
events on the engine's thread.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import rclpy.validate_namespace
from rclpy.exceptions import InvalidNamespaceException

from physis_core.engine.engine import Engine, EngineEvent
from physis_core.types import FinishedChunk, Refused, UserError
from physis_ros.engine.diagnosis import diagnoses
from physis_ros.engine.life import (
    check_stream_names,
    destroy_handlers,
    let_engine_threads_run,
    start_engine,
)
from physis_ros.engine.metrics import EngineMetrics
from physis_ros.engine.parameters import EngineParameters
from physis_ros.engine.served import Served, served
from physis_ros.engine.stream import StreamSettings
from physis_ros.engine.streams import EngineStreams
from physis_ros.node.base import EXIT_FAULT, Diagnosis, PhysisNode, main
from physis_ros.node.interfaces import CLOSE_STREAM, OPEN_STREAM
from physis_ros.node.metric_names import Sample
from physis_ros.node.system import give_back_memory
from physis_ros.node.waiting import one_line
from physis_ros.srv import CloseStream, OpenStream

_HOUSEKEEPING_PERIOD_S = 0.5


class EngineNode(PhysisNode[EngineParameters]):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__("engine_node", EngineParameters)
        self._engine: Engine | None = None
        self._metrics_of: EngineMetrics | None = None
        self._served: Served | None = None
        self._streams: EngineStreams | None = None
        self._failed: set[str] = set()
        self._notes: dict[str, int] = {}
        self._lost = ""
        self._timer: Any = None
        self._services_made: list[Any] = []
        self._last_epoch: dict[str, int] = {}

    def validate_parameters(self, new: EngineParameters) -> None:
        ids, namespaces = new.stream_ids, new.stream_namespaces
        check_stream_names(ids, namespaces)
        for namespace in namespaces:
            _check_namespace("stream_namespaces", namespace)

    def configure(self) -> None:
        params = self.params
        self._served = what = served(params)
        self._engine = Engine(
            what.deployment,
            on_chunk=self._on_chunk,
            on_event=self._on_event,
            admission=what.admission,
        )
        log = self.get_logger()
        if what.planned and what.admission is None:
            log.warning(f"{params.deployment}: a model has no profile: all streams are admitted")
        start_engine(self._engine, params.start_timeout_s, self.stopping, log.info)
        shapes = ", ".join(
            f"{what.deployment.models[name].label}: {one.purpose}"
            for name, one in what.models.items()
        )
        log.info(
            f"{shapes}; {len(what.deployment.routes)} routes over "
            f"{len(what.deployment.devices)} devices in {what.deployment.workers} workers; "
            f"warm-up {self._engine.warmup_s:.2f} s"
        )

    def activate(self) -> None:
        let_engine_threads_run()
        what = self._served
        assert self._engine is not None and what is not None, "activate follows configure"
        if self.params.metrics_port:
            self._metrics_of = EngineMetrics(self._engine, self._metrics_failed)
        self._streams = EngineStreams(self, self._engine, self._last_epoch)
        for settings in self._at_start(what):
            refused = self._streams.open(settings)
            if refused is not None:
                raise UserError("stream_ids", settings.stream_id, refused.sentence)
        self._services_made = [
            self.create_service(OPEN_STREAM.type, OPEN_STREAM.name, self._serve_open),
            self.create_service(CLOSE_STREAM.type, CLOSE_STREAM.name, self._serve_close),
        ]
        self._timer = self.steady_timer(_HOUSEKEEPING_PERIOD_S, self._keep_house)

    def _at_start(self, what: Served) -> list[StreamSettings]:
        """The streams of the deployment file, or those of the parameters."""
        named = dict(zip(self.params.stream_ids, self.params.stream_namespaces))
        if not self.params.deployment:
            one = what.model("")
            return [
                StreamSettings(stream_id=name, namespace=space, model=one, period_s=one.period_s)
                for name, space in named.items()
            ]
        return [
            StreamSettings(
                stream_id=name,
                namespace=named.get(name, name),
                model=what.models[planned.model],
                route=planned.route,
                period_s=planned.slo.period_s,
                priority=planned.priority,
            )
            for name, planned in what.planned.items()
        ]

    def deactivate(self) -> None:
        destroy_handlers(self, self._timer, self._services_made)
        if self._metrics_of is not None:
            self._metrics_of.close()
            self._metrics_of = None
        self._timer = None
        self._services_made = []
        if self._streams is not None:
            self._streams.close_all()
            self._streams = None

    def cleanup(self) -> None:
        self.deactivate()
        if self._engine is not None:
            self._engine.close()
        self._engine = None
        self._served = None
        self._notes.clear()
        give_back_memory()

    def on_clock_jump(self, delta_s: float) -> None:
        if self._streams is not None:
            self._streams.restart(f"ROS time jumped by {delta_s:+.3f} s")

    # Services ----------------------------------------------------------------------------------

    async def _serve_open(
        self, request: OpenStream.Request, response: OpenStream.Response
    ) -> OpenStream.Response:
        streams = self._streams
        refused: Refused | None = Refused(reason="the node is not active")
        if streams is not None:
            try:
                refused = await streams.open_later(self._settings(request, streams))
            except UserError as error:
                refused = Refused(reason=str(error))
        response.admitted = refused is None
        if refused is not None:
            response.reason = refused.sentence
        elif streams is not None:
            response.epoch = streams.by_id[request.stream_id].epoch
        return response

    def _settings(self, request: OpenStream.Request, streams: EngineStreams) -> StreamSettings:
        """Raises UserError where the request cannot be met as it stands."""
        stream_id, what = request.stream_id, self._served
        assert what is not None
        configured = dict(zip(self.params.stream_ids, self.params.stream_namespaces))
        namespace = configured.get(stream_id, stream_id)
        if stream_id in streams.by_id:
            raise UserError("stream_id", stream_id, "is open already")
        if not math.isfinite(request.period_s) or request.period_s < 0.0:
            raise UserError("period_s", request.period_s, "must be above 0, or 0: the default")
        _check_namespace("stream_id", namespace)
        planned = what.planned.get(stream_id)
        if planned is not None and request.model not in ("", planned.model):
            raise UserError("model", request.model, f"the file runs {planned.model} as {stream_id}")
        model = what.model(request.model if planned is None else planned.model)
        period_s = request.period_s or (model.period_s if planned is None else planned.slo.period_s)
        if not period_s:
            raise UserError("period_s", request.period_s, f"{model.name} names none: set it")
        return StreamSettings(
            stream_id=stream_id,
            namespace=namespace,
            model=model,
            route=None if planned is None else planned.route,
            period_s=period_s,
            instruction=request.instruction,
            priority=int(request.priority),
        )

    async def _serve_close(
        self, request: CloseStream.Request, response: CloseStream.Response
    ) -> CloseStream.Response:
        streams = self._streams
        stream = None if streams is None else streams.by_id.get(request.stream_id)
        if streams is None or stream is None or stream.closing:
            response.reason = f"stream_id: {request.stream_id!r}: no such stream"
            return response
        response.closed = await streams.close_later(request.stream_id, drain=request.drain)
        response.reason = "" if response.closed else "did not drain in time; cancelled"
        return response

    # The engine's thread -----------------------------------------------------------------------

    def _on_chunk(self, chunk: FinishedChunk) -> None:
        metrics = self._metrics_of
        if metrics is not None:
            metrics.chunk(chunk)
        streams = self._streams
        stream = None if streams is None else streams.by_id.get(chunk.stream_id)
        if stream is not None:
            stream.take_chunk(chunk)

    def _on_event(self, event: EngineEvent) -> None:
        self._notes[event.kind] = self._notes.get(event.kind, 0) + max(event.count, 1)
        if event.kind in ("worker_given_up", "edge_given_up"):
            self._lost = one_line(event.reason)
        elif event.kind in ("worker_lost", "edge_lost"):
            # The edges of a dead worker are lost with it, and may be noticed first.
            lost = f"worker {event.worker} is lost: {one_line(event.reason)}"
            if self.params.recovery != "none":
                self.get_logger().warning(f"{lost}; it is made good by {self.params.recovery}")
            elif not self._lost or event.kind == "worker_lost":
                self._lost = lost
        elif event.kind == "stream_recovered":
            self.get_logger().info(f"{event.stream_id}: goes on {event.reason}")
        elif event.kind == "stream_failed":
            self._failed.add(event.stream_id)
            self.get_logger().error(f"{event.stream_id}: stream failed: {one_line(event.reason)}")
        elif event.kind == "chunk_overdue":
            self.get_logger().warning(f"{event.stream_id}: {event.reason}")
        elif event.kind in ("overload", "message_refused"):
            self.get_logger().warning(f"{event.kind}: {event.reason}")

    # Housekeeping ------------------------------------------------------------------------------

    async def _keep_house(self) -> None:
        if self._engine is not None and self._engine.failure:
            self._lost = one_line(self._engine.failure)
        if self._lost:
            self.set_fault(self._lost)
            self.publish_diagnostics()
            self.request_exit(EXIT_FAULT, f"{self._lost}; ending, to be started anew")
            return
        streams = self._streams
        while streams is not None and self._failed:
            stream = streams.by_id.get(self._failed.pop())
            if stream is None or stream.closing:
                continue
            refused = await streams.open_later(stream.settings)
            if refused is not None:
                self.get_logger().error(f"{stream.stream_id}: not opened again: {refused.sentence}")

    def waits_for(self) -> str:
        streams = self._streams
        if streams is None:
            return ""
        now_s = self.steady_s()
        return "; ".join(filter(None, (s.waits_for(now_s) for s in streams.by_id.values())))

    def _metrics_failed(self, error: Exception) -> None:
        self.request_exit(EXIT_FAULT, f"metrics: {type(error).__name__}: {error}")

    def metrics(self) -> Iterable[Sample]:
        return () if self._metrics_of is None else self._metrics_of.samples()

    def diagnose(self) -> Sequence[Diagnosis]:
        streams = self._streams
        if self._engine is None or streams is None or not self.active:
            return ()
        return diagnoses(
            self._engine.status(), list(streams.by_id.values()), lost=self._lost, notes=self._notes
        )


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
