"""What is counted, and how often: a rate has a meaning, and the chunk period follows from it.

One latent chunk may be four frames, or sixteen control steps, or half an action chunk. The same
pipeline then has three very different "rates". So a service level always says what it counts and
how many of them a chunk holds (q); the chunk period is at most q / f; and rates of different
meanings are never compared or added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from physis_core.deployment.fields import Fields
from physis_core.types import UserError

Meaning = Literal["latents", "frames", "control_steps", "action_chunks"]
MEANINGS: tuple[str, ...] = get_args(Meaning)

_ONE = {
    "latents": "latent",
    "frames": "frame",
    "control_steps": "control step",
    "action_chunks": "action chunk",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """`per_chunk` (q) outputs of meaning `count` per chunk, at `rate_hz` (f) of them or more.

    `max_response_s`: bound on observation entry to chunk completion, where there is one.
    """

    count: Meaning
    per_chunk: float
    rate_hz: float
    max_response_s: float = math.inf

    def __post_init__(self) -> None:
        if self.count not in MEANINGS:
            raise UserError("count", self.count, f"one of {', '.join(MEANINGS)}")
        if not 0.0 < self.per_chunk < math.inf:
            raise UserError("per_chunk", self.per_chunk, "must be positive and finite")
        if not 0.0 < self.rate_hz < math.inf:
            raise UserError("rate_hz", self.rate_hz, "must be positive and finite")
        if not self.max_response_s > 0.0:
            raise UserError("max_response_s", self.max_response_s, "must be positive")

    @classmethod
    def of_period(cls, count: Meaning, per_chunk: float, period_s: float) -> Slo:
        if not 0.0 < period_s < math.inf:
            raise UserError("period_s", period_s, "must be positive and finite")
        return cls(count=count, per_chunk=per_chunk, rate_hz=per_chunk / period_s)

    @property
    def period_s(self) -> float:
        """Longest chunk period that keeps the rate: q / f."""
        return self.per_chunk / self.rate_hz

    def with_period(self, period_s: float) -> Slo:
        return Slo(
            count=self.count,
            per_chunk=self.per_chunk,
            rate_hz=self.per_chunk / period_s,
            max_response_s=self.max_response_s,
        )

    def explain(self) -> str:
        """The derivation of the period, in one line."""
        return (
            f"{self.rate_hz:.4g} {_ONE[self.count]}/s at {self.per_chunk:g} per chunk:"
            f" chunk period <= {self.per_chunk:g} / {self.rate_hz:.4g}"
            f" = {self.period_s * 1e3:.4g} ms"
        )


def rate_text(chunk_hz: float, count: Meaning, per_chunk: float) -> str:
    """A chunk rate with its meaning, such as `244.9 chunk/s (= 980 frame/s at 4 per chunk)`."""
    return (
        f"{chunk_hz:.4g} chunk/s (= {chunk_hz * per_chunk:.4g} {_ONE[count]}/s"
        f" at {per_chunk:g} per chunk)"
    )


def same_meaning(first: Slo, second: Slo) -> None:
    """Refuse to put two rates side by side that count different things.

    Raises:
        UserError: with the reason why the comparison would mislead.
    """
    if first.count != second.count:
        raise UserError(
            "count",
            second.count,
            f"cannot stand beside {first.count}: one chunk holds {first.per_chunk:g} of the one and"
            f" {second.per_chunk:g} of the other, so the larger number need not be the faster"
            " stream; compare chunk periods, or state both in one meaning",
        )


def read_slo(fields: Fields) -> Slo:
    """From `{count, per_chunk, rate | period_ms, max_response_ms}`.

    `rate` is a number of outputs per second, or text such as `30 frames`: the word must then be
    that of `count`.
    """
    fields.only("count", "per_chunk", "rate", "period_ms", "max_response_ms")
    count = fields.text("count", choices=MEANINGS)
    per_chunk = fields.number("per_chunk", above=0.0)
    if ("rate" in fields) == ("period_ms" in fields):
        both = "rate" in fields
        raise UserError(
            fields.name("rate"),
            fields.raw("rate", None),
            "give either a rate or period_ms" + (", not both" if both else ""),
        )
    if "rate" in fields:
        rate_hz = _rate(fields, count)
    else:
        rate_hz = per_chunk / (fields.number("period_ms", above=0.0) / 1e3)
    max_response_ms = fields.number("max_response_ms", math.inf, above=0.0)
    return Slo(
        count=count,  # type: ignore[arg-type]
        per_chunk=per_chunk,
        rate_hz=rate_hz,
        max_response_s=max_response_ms / 1e3,
    )


def _rate(fields: Fields, count: str) -> float:
    value = fields.raw("rate")
    if isinstance(value, str) and " " in value.strip():
        number, _, word = value.strip().partition(" ")
        meaning = word.strip().removesuffix("/s").strip().replace(" ", "_")
        meaning = meaning if meaning.endswith("s") else meaning + "s"
        if meaning not in MEANINGS:
            raise UserError(fields.name("rate"), value, f"counts none of {', '.join(MEANINGS)}")
        if meaning != count:
            raise UserError(
                fields.name("rate"),
                value,
                f"counts {meaning}, but per_chunk counts {count}: a chunk of {count} says"
                f" nothing of how many {meaning} it holds; state both in one meaning",
            )
        try:
            rate_hz = float(number)
        except ValueError:
            raise UserError(fields.name("rate"), value, "must begin with a number") from None
        if not 0.0 < rate_hz < math.inf:
            raise UserError(fields.name("rate"), value, "must be positive and finite")
        return rate_hz
    return fields.number("rate", above=0.0)
