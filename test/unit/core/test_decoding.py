"""Typed decoding: a refusal names the field by its whole path, its value and what is expected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from physis_core.decoding import Count, NotNegative, Part, Positive, decode
from physis_core.types import UserError


@dataclass(frozen=True, kw_only=True)
class Noise:
    relative: float = 0.0

    def __post_init__(self) -> None:
        if self.relative > 1.0:
            raise UserError("relative", self.relative, "is too much")


class Link(Part, frozen=True, kw_only=True):
    latency_us: NotNegative
    kind: Literal["fast", "slow"] = "fast"


class Device(Part, frozen=True, kw_only=True):
    period_s: Positive
    batch: Annotated[int, Meta(ge=1, le=64)] = 16
    times: dict[Count, Positive] | Positive = 1.0
    noise: Noise = Noise()


class Pool(Part, frozen=True, kw_only=True):
    devices: dict[str, Device]
    links: Annotated[tuple[Link, ...], Meta(min_length=1)] | None = None
    verify: bool = True
    name: str = ""


def pool(**device: Any) -> dict[str, Any]:
    return {"devices": {"a": {"period_s": 1}, "b": {"period_s": 1, **device}}}


def test_what_fits_is_typed_and_null_is_absent() -> None:
    found = decode({**pool(times={"1": 2, 4: 3}), "links": None, "name": None}, Pool)
    assert found.devices["b"].times == {1: 2.0, 4: 3.0}
    assert found.links is None
    assert found.name == ""


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (3, "file: 3: must be a mapping of fields"),
        ({}, "file.devices: None: is needed"),
        ({"devcies": {}}, "file.devcies: {}: unknown; did you mean 'devices'?"),
        (
            pool(batch=0),
            "file.devices.b.batch: 0: must be a whole number at least 1 and at most 64",
        ),
        (pool(batch=2.0), "file.devices.b.batch: 2.0: must be a whole number"),
        (pool(batch=True), "file.devices.b.batch: True: must be a whole number"),
        (pool(period_s="fast"), "file.devices.b.period_s: 'fast': must be a number above 0"),
        (pool(period_s=math.inf), "file.devices.b.period_s: inf: must be finite"),
        (pool(perod_s=1), "file.devices.b.perod_s: 1: unknown; did you mean 'period_s'?"),
        (pool(times={1: 1.0, 2: -1}), "file.devices.b.times[2]: -1: must be a number above 0"),
        (
            pool(times={"1": 1, "x": 2}),
            "file.devices.b.times: 'x': each key must be a whole number",
        ),
        (
            pool(times=[]),
            "file.devices.b.times: []: must be a mapping of fields or a number above 0",
        ),
        (pool(noise={"relative": 2.0}), "file.devices.b.noise.relative: 2.0: is too much"),
        (pool(noise={"relatve": 2.0}), "file.devices.b.noise.relatve: 2.0: unknown; did you mean"),
        ({**pool(), "links": []}, "file.links: []: must be a list with at least one entry"),
        ({**pool(), "links": [{"kind": "slow"}]}, "file.links[0].latency_us: None: is needed"),
        (
            {**pool(), "links": [{"latency_us": 1}, {"latency_us": 1, "kind": "x"}]},
            "file.links[1].kind: 'x': must be one of fast, slow",
        ),
        ({**pool(), "verify": "no"}, "file.verify: 'no': must be true or false"),
        ({**pool(), "name": ["n"]}, "file.name: ['n']: must be text"),
        ({"devices": {5: {"period_s": 1}}}, "file.devices: 5: each key must be text"),
    ],
)
def test_a_refusal_is_one_line_with_path_value_and_expectation(values: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        decode(values, Pool, "file")
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)
