"""Observations in, action chunks out: a policy on another server, in the engine's place.

Takes `observation`, publishes `action_chunk` with the same stamps, deadlines and lease as
engine_node, and serves `open_stream` and `close_stream` for its one stream. It runs no model and
imports no torch. The server (parameter `policy`) is asked once a period with the newest
observation; a contract (parameter `policy_contract`) says how. A server that is not there, that
does not fit, or that came back with another model is named on /diagnostics, and no chunk leaves.

Threads: observations and services on the executor; requests and replies on the link's.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from physis_core.types import Percentiles, UserError
from physis_ros.node.base import EXIT_FAULT, OK, WARN, Diagnosis, PhysisNode, main
from physis_ros.node.interfaces import CLOSE_STREAM, OPEN_STREAM
from physis_ros.policies.link import LinkConfig
from physis_ros.policies.parameters import PolicyParameters
from physis_ros.policies.requests import RequestConfig
from physis_ros.policies.stream import PolicyStream
from physis_ros.policies.wire import Open, WireOptions, opener, parse_address, read_key
from physis_ros.robot.policy_contract import PolicyContract, load_policy_contract
from physis_ros.robot.robot_files import check_robot_joints
from physis_ros.srv import CloseStream, OpenStream


class PolicyNode(PhysisNode[PolicyParameters]):
    """See the module's text."""

    def __init__(self) -> None:
        super().__init__("policy_node", PolicyParameters)
        self._contract: PolicyContract | None = None
        self._link: LinkConfig | None = None
        self._opener: Open | None = None
        self._stream: PolicyStream | None = None
        self._last_epoch = 0
        self._services_made: list[Any] = []

    def validate_parameters(self, new: PolicyParameters) -> None:
        parse_address(new.policy)
        if not new.stream_id:
            raise UserError("stream_id", new.stream_id, "must not be empty")

    def configure(self) -> None:
        params = self.params
        self._contract = contract = load_policy_contract(params.policy_contract)
        check_robot_joints(contract.actions.joints, params.robot_file, params.joint_prefix)
        address = parse_address(params.policy)
        self._opener = opener(address)
        self._link = LinkConfig(
            address=address,
            options=WireOptions(
                api_key=read_key(params.api_key_file),
                open_s=params.open_s,
                most_bytes=params.most_message_mib * 2**20,
            ),
            connections=params.connections,
            in_flight=params.in_flight,
            requests=RequestConfig(
                period_s=params.period_s or contract.period_s,
                max_age_s=params.max_age_s,
                timeout_s=params.timeout_s,
                first_timeout_s=params.first_timeout_s,
                expected_response_s=params.expected_response_s,
                margin_s=params.margin_s,
                max_action_age_s=params.max_action_age_s,
            ),
        )

    def activate(self) -> None:
        self._open()
        self._services_made = [
            self.create_service(OPEN_STREAM.type, OPEN_STREAM.name, self._serve_open),
            self.create_service(CLOSE_STREAM.type, CLOSE_STREAM.name, self._serve_close),
        ]

    def deactivate(self) -> None:
        for service in self._services_made:
            self.destroy_service(service)
        self._services_made = []
        self._close()

    def cleanup(self) -> None:
        self.deactivate()
        self._contract = self._link = self._opener = None

    def on_clock_jump(self, delta_s: float) -> None:
        if self._stream is not None:
            self._stream.restart()

    def _open(self, instruction: str = "", period_s: float = 0.0) -> int:
        """Begin the stream in a new epoch, which is above those of processes that are no more."""
        assert self._contract is not None and self._link is not None, "activate follows configure"
        assert self._opener is not None, "activate follows configure"
        link = self._link
        if period_s:
            link = replace(link, requests=replace(link.requests, period_s=period_s))
        epoch = max(int(time.time()), self._last_epoch + 1)
        self._stream = PolicyStream(
            self,
            self._contract,
            link=link,
            open_connection=self._opener,
            epoch=epoch,
            instruction=instruction,
            failed=self._end_by,
        )
        return epoch

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._last_epoch = self._stream.epoch
            self._stream = None

    def _end_by(self, error: BaseException) -> None:
        self.request_exit(EXIT_FAULT, f"policy-link failed: {type(error).__name__}: {error}")

    # Services ----------------------------------------------------------------------------------

    def _serve_open(
        self, request: OpenStream.Request, response: OpenStream.Response
    ) -> OpenStream.Response:
        if request.stream_id != self.params.stream_id:
            response.reason = f"stream_id: {request.stream_id!r}: {self._serves()}"
        elif self._stream is not None:
            response.reason = f"stream_id: {request.stream_id!r}: is open already"
        elif not math.isfinite(request.period_s) or request.period_s < 0.0:
            response.reason = f"period_s: {request.period_s!r}: must be above 0, or 0: the default"
        else:
            response.epoch = self._open(request.instruction, request.period_s)
            response.admitted = True
        return response

    def _serve_close(
        self, request: CloseStream.Request, response: CloseStream.Response
    ) -> CloseStream.Response:
        """At once, also with `drain`: what the server still computes is not waited for."""
        if request.stream_id != self.params.stream_id or self._stream is None:
            response.reason = f"stream_id: {request.stream_id!r}: no such stream"
        else:
            self._close()
            response.closed = True
        return response

    def _serves(self) -> str:
        return f"this node serves {self.params.stream_id!r} alone"

    # Reports -----------------------------------------------------------------------------------

    def waits_for(self) -> str:
        return "" if self._stream is None else self._stream.waits_for(self.steady_s())

    def diagnose(self) -> Sequence[Diagnosis]:
        stream = self._stream
        if stream is None:
            return ()
        requests = stream.link.requests
        level, message = OK, "streaming"
        if stream.link.state:
            level, message = WARN, stream.link.state
        elif stream.reason:
            level, message = WARN, stream.reason
        elif not stream.observations:
            level, message = WARN, "no observation yet"
        values = {
            "policy": self.params.policy,
            "epoch": stream.epoch,
            "observations": stream.observations,
            "chunks": stream.chunks,
            "refused": stream.refused + requests.refused,
            "in_flight": requests.in_flight,
            "misses": requests.misses,
            "dropped": requests.dropped,
            "stale_replies": requests.stale,
            "lost_requests": requests.lost_requests,
            "reconnects": stream.link.reconnects,
            "lookahead_s": f"{stream.lookahead_s:.4f}",
            "response_latency_ms": _in_ms(stream.response_s(), 1e3),
            "server_ms": _in_ms(stream.server_ms(), 1.0),
        }
        part = f"stream {stream.stream_id}"
        return (Diagnosis(part=part, level=level, message=message, values=values),)


def _in_ms(values: Percentiles, scale: float) -> str:
    if not values.n:
        return "none yet"
    p50, p99, most = (scale * v for v in (values.p50, values.p99, values.max))
    return f"p50 {p50:.1f}, p99 {p99:.1f}, max {most:.1f}"


if __name__ == "__main__":
    sys.exit(main(PolicyNode))
