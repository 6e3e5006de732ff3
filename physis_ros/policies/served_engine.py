"""The engine behind a policy server: a stream for each session, a chunk for each request.

Requests come from the server's event loop, chunks on the engine's thread; a future of the loop
joins them. A chunk answers the request whose observation started it. Torch is needed only here.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
import numpy as np

from physis_core.engine.engine import Engine, EngineEvent
from physis_core.engine.stream import StreamConfig
from physis_core.model.registry import describe
from physis_core.types import FinishedChunk, Observation, ObservationStamp, Refused, UserError
from physis_ros.engine.lookahead import LookaheadConfig, LookaheadEstimator
from physis_ros.engine.served import Served
from physis_ros.engine.wam_codec import WamContract, action_positions, observation_tensors
from physis_ros.node.waiting import one_line
from physis_ros.policies.payload import Floats, RobotInputs
from physis_ros.robot.policy_contract import PolicyContract, contract_of_model

T = TypeVar("T")
MOST_IN_FLIGHT = 4
_INITIAL_LOOKAHEAD_S = 0.1
_SAME_STEP_S = 1e-4


class RequestFailed(Exception):
    """A request has no answer, in one line."""


class ServedEngine:
    """Engine and contract of one server. Every method is called on the server's event loop.

    Raises:
        UserError: the engine has several models, or the contract is for other joints.
    """

    def __init__(
        self,
        what: Served,
        contract: PolicyContract | None = None,
        *,
        model: str = "",
        seed: int = 0,
    ) -> None:
        one = what.model("")
        ref = what.deployment.models[one.name]
        self._wam = one.contract
        self._route = one.routes[0]
        self.contract = _fitted(contract or contract_of_model(describe(ref)), self._wam)
        self.label = ref.label
        self.engine = Engine(
            what.deployment,
            on_chunk=self._on_chunk,
            on_event=self._on_event,
            admission=what.admission,
        )
        self.started = asyncio.Event()
        """Set once the workers are warm; sessions wait for it."""
        self.failed = asyncio.Event()
        self._seed = seed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: dict[str, ServedSession] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="policy-server")
        self._opened = 0

    def metadata(self) -> dict[str, Any]:
        """What the server says of itself: the same after every start with the same model."""
        return {
            "model": self.label,
            "cameras": list(self._wam.camera_names),
            "image_resolution": list(self._wam.image_size),
            "joints": list(self._wam.joint_names),
            "action_horizon": self._wam.action_steps,
            "action_dim": len(self.contract.actions.joints),
            "step_s": float(self.contract.actions.step_s),
            "period_s": float(self.contract.period_s),
            "lookahead_max_s": float(self._wam.lookahead_max_s),
            "max_in_flight": MOST_IN_FLIGHT,
            "inputs": ["lookahead_s", "request_id"],
        }

    def bind(self) -> None:
        """To the running event loop; once, before the first session."""
        self._loop = asyncio.get_running_loop()

    async def open(self, name: str) -> ServedSession:
        """A session with empty KV. Raises RequestFailed where the engine admits none."""
        await self.started.wait()
        self._opened += 1
        stream_id = f"{name or 'session'}#{self._opened}"
        session = ServedSession(self, stream_id)
        # Before the engine knows it: a chunk may leave at once.
        self._sessions[stream_id] = session
        config = StreamConfig(
            stream_id=stream_id,
            release="on_observation",
            seed=self._seed,
            route=self._route,
            max_in_flight=MOST_IN_FLIGHT,
        )
        opened = await self.apart(lambda: self.engine.open_stream(config))
        if isinstance(opened, Refused):
            del self._sessions[stream_id]
            raise RequestFailed(opened.sentence)
        return session

    async def close(self, session: ServedSession) -> None:
        if self._sessions.pop(session.stream_id, None) is not None and not self.engine.failure:
            await self.apart(lambda: self.engine.close_stream(session.stream_id))

    async def apart(self, act: Callable[[], T]) -> T:
        """What waits for the engine, on a thread of its own."""
        assert self._loop is not None, "bind comes first"
        return await self._loop.run_in_executor(self._threads, act)

    def lookahead(self) -> LookaheadEstimator:
        """Of a session whose client says none: from a request to its reply."""
        most_s = self._wam.lookahead_max_s
        initial_s = min(_INITIAL_LOOKAHEAD_S, most_s)
        return LookaheadEstimator(LookaheadConfig(initial_s=initial_s, max_s=most_s))

    def observation(self, inputs: RobotInputs, number: int, lookahead_s: float) -> Observation:
        """Raises UserError where a camera or joint is missing."""
        # The client knows the capture; here only the request's number counts.
        stamp = ObservationStamp(
            observation_id=number, capture_oldest_ns=0, capture_newest_ns=0, receipt_ns=0
        )
        return Observation(
            stamp=stamp,
            tensors=observation_tensors(
                self._wam,
                images=inputs.images,
                joint_names=list(inputs.joints),
                positions=list(inputs.joints.values()),
                lookahead_s=min(lookahead_s, self._wam.lookahead_max_s),
            ),
        )

    def positions(self, chunk: FinishedChunk) -> Floats:
        """[steps, joints] in the order of the contract. Raises UserError."""
        found = action_positions(self._wam, chunk.outputs)
        order = [self._wam.joint_names.index(name) for name in self.contract.actions.joints]
        return np.asarray(found[:, order], dtype=np.float64)

    def end(self) -> None:
        self._threads.shutdown(wait=True)
        self.engine.close()

    def _on_chunk(self, chunk: FinishedChunk) -> None:
        self._soon(lambda: self._deliver(chunk))

    def _on_event(self, event: EngineEvent) -> None:
        if event.kind in ("stream_failed", "worker_lost", "edge_lost"):
            reason = one_line(event.reason) or event.kind
            self._soon(lambda: self._fail(event.kind, event.stream_id, reason))

    def _soon(self, act: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(act)

    def _deliver(self, chunk: FinishedChunk) -> None:
        session = self._sessions.get(chunk.stream_id)
        if session is not None:
            session.take(chunk)

    def _fail(self, kind: str, stream_id: str, reason: str) -> None:
        for session in list(self._sessions.values()):
            if kind != "stream_failed" or session.stream_id == stream_id:
                session.fail(reason)
        if kind != "stream_failed":
            self.failed.set()


class ServedSession:
    """One client's stream of chunks."""

    def __init__(self, served: ServedEngine, stream_id: str) -> None:
        self.stream_id = stream_id
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._estimator = served.lookahead()
        self._waiting: OrderedDict[int, asyncio.Future[FinishedChunk]] = OrderedDict()
        self._next = 0

    async def infer(self, inputs: RobotInputs, lookahead_s: float | None) -> Floats:
        """The actions for one observation, [steps, joints].

        `lookahead_s`: from its capture to the first point; None: measured here.

        Raises:
            UserError: the inputs do not fit.
            RequestFailed: the engine refused them, or failed; or a newer request came first.
        """
        given_s = self._estimator.value_s if lookahead_s is None else lookahead_s
        number = self._next
        self._next += 1
        observation = self._served.observation(inputs, number, given_s)
        future: asyncio.Future[FinishedChunk] = self._loop.create_future()
        self._waiting[number] = future
        begun_s = self._loop.time()
        refused = self._served.engine.observe(self.stream_id, observation)
        if refused is not None:
            del self._waiting[number]
            raise RequestFailed(refused.reason)
        chunk = await future
        self._estimator.add(self._loop.time() - begun_s)
        return self._served.positions(chunk)

    def take(self, chunk: FinishedChunk) -> None:
        number = chunk.observations[0].observation_id
        for earlier in [n for n in self._waiting if n < number]:
            overtaken = self._waiting.pop(earlier)
            if not overtaken.done():
                overtaken.set_exception(RequestFailed("a newer request came before this one began"))
        future = self._waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(chunk)

    def fail(self, reason: str) -> None:
        while self._waiting:
            _, future = self._waiting.popitem()
            if not future.done():
                future.set_exception(RequestFailed(reason))


def _fitted(contract: PolicyContract, model: WamContract) -> PolicyContract:
    """The contract with the model's image size: what clients send is resized to it.

    Raises:
        UserError: it is for other joints, more points or another step than the model's.
    """
    actions = contract.actions
    odd = set(actions.joints) ^ set(model.joint_names)
    if odd:
        raise UserError("policy_contract", sorted(odd), "joints that only contract or model has")
    if actions.horizon > model.action_steps:
        raise UserError("actions.horizon", actions.horizon, f"the model gives {model.action_steps}")
    if abs(actions.step_s - model.step_s) > _SAME_STEP_S:
        raise UserError("actions.step_s", actions.step_s, f"the model's step is {model.step_s:g} s")
    height, width = model.image_size
    return msgspec.structs.replace(
        contract,
        image_height=height,
        image_width=width,
        images=tuple(msgspec.structs.replace(image, canvas=None) for image in contract.images),
    )


def lookahead_of(request: Mapping[str, Any]) -> float | None:
    """What a client says that passes from capture to the first point; None where it says none.

    Raises:
        UserError: it is no such time.
    """
    given = request.get("lookahead_s")
    if given is None:
        return None
    if not isinstance(given, (int, float, np.floating)) or not 0.0 <= float(given) < math.inf:
        raise UserError("lookahead_s", given, "must be a number of seconds, 0 or more")
    return float(given)
