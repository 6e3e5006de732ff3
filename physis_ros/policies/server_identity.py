"""What a server says of itself: whether it fits the contract, and whether it is still the same.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from physis_ros.robot.policy_contract import PolicyContract

_MOST_PLACES = 64


def places_of(metadata: Mapping[str, Any], *, wanted: int) -> int:
    """Requests that may be in flight on a connection: `max_in_flight` of the server, else one.

    `wanted`: at most so many; 0: what the server allows.
    """
    allowed = metadata.get("max_in_flight", 1)
    if not isinstance(allowed, int) or isinstance(allowed, bool):
        allowed = 1
    most = min(max(1, allowed), _MOST_PLACES)
    return min(most, wanted) if wanted else most


def changed_metadata(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first entry that differs, with both values; empty where all are the same."""
    for key in sorted({*before, *now}, key=str):
        if not _same(before.get(key), now.get(key)):
            return f"{key}: {_short(before.get(key))} before, {_short(now.get(key))} now"
    return ""


def misfit(contract: PolicyContract, metadata: Mapping[str, Any]) -> str:
    """Why a server of this metadata cannot serve the contract, in one line; empty where it says
    nothing against it."""
    if metadata.get("protocol") == "dreamzero_async":
        return "protocol: 'dreamzero_async' is not spoken: serve it without the async session"
    actions = contract.actions
    width = sum(len(part.joints) for part in actions.parts)
    horizon = metadata.get("action_horizon")
    if isinstance(horizon, int) and horizon < actions.horizon:
        return f"action_horizon: {horizon}: the contract wants {actions.horizon} points"
    dims = metadata.get("action_dim")
    if isinstance(dims, int) and dims != width:
        return f"action_dim: {dims}: the contract has {width} columns"
    step_s = metadata.get("step_s")
    if isinstance(step_s, float) and abs(step_s - actions.step_s) > 1e-6:
        return f"step_s: {step_s}: the contract has {actions.step_s}"
    joints = metadata.get("joints")
    if isinstance(joints, Sequence) and not isinstance(joints, str):
        wanted = set(contract.actions.joints)
        if set(joints) != wanted:
            odd = sorted(set(joints) ^ wanted)
            return f"joints: {odd}: not both the server's and the contract's"
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    return bool(a == b)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
