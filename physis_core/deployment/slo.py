"""What is counted, and how often: a rate has a meaning, and the chunk period follows from it.

One latent chunk may be four frames, or sixteen control steps, or half an action chunk. So the same
pipeline has three very different "rates". A service level always says what it counts and how many
of them a chunk holds (q); the chunk period is at most q / f; and rates of different meanings are
never compared or added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from physis_core.decoding import Part, Positive
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
            raise UserError("count", self.count, f"must be one of {', '.join(MEANINGS)}")
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


class SloFields(Part, frozen=True, kw_only=True):
    """An SLO in a file. `rate` is outputs per second: a number, or text such as `30 frames`, whose
    word must then be that of `count`.
    """

    count: Meaning
    per_chunk: Positive
    rate: Positive | str | None = None
    period_ms: Positive | None = None
    max_response_ms: Positive | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.period_ms is None):
            both = "" if self.rate is None else ", not both"
            raise UserError("rate", self.rate, f"give either a rate or period_ms{both}")
        self.slo()

    def slo(self) -> Slo:
        if self.period_ms is not None:
            rate_hz = self.per_chunk / (self.period_ms / 1e3)
        else:
            assert self.rate is not None
            rate_hz = self._worded(self.rate) if isinstance(self.rate, str) else self.rate
        response_s = math.inf if self.max_response_ms is None else self.max_response_ms / 1e3
        return Slo(
            count=self.count,
            per_chunk=self.per_chunk,
            rate_hz=rate_hz,
            max_response_s=response_s,
        )

    def _worded(self, text: str) -> float:
        number, _, word = text.strip().partition(" ")
        meaning = word.strip().removesuffix("/s").strip().replace(" ", "_")
        meaning = meaning if meaning.endswith("s") else meaning + "s"
        if word and meaning not in MEANINGS:
            raise UserError("rate", text, f"counts none of {', '.join(MEANINGS)}")
        if word and meaning != self.count:
            raise UserError(
                "rate",
                text,
                f"counts {meaning}, but per_chunk counts {self.count}: a chunk of {self.count}"
                f" does not say how many {meaning} it holds; use one meaning for both",
            )
        try:
            rate_hz = float(number)
        except ValueError:
            raise UserError("rate", text, "must begin with a number") from None
        if not 0.0 < rate_hz < math.inf:
            raise UserError("rate", text, "must be positive and finite")
        return rate_hz


def rate_text(chunk_hz: float, count: Meaning, per_chunk: float) -> str:
    """A chunk rate with its meaning, such as `244.9 chunk/s (= 980 frame/s at 4 per chunk)`."""
    return (
        f"{chunk_hz:.4g} chunk/s (= {chunk_hz * per_chunk:.4g} {_ONE[count]}/s"
        f" at {per_chunk:g} per chunk)"
    )


def same_meaning(first: Slo, second: Slo) -> None:
    """Refuse to compare two rates that count different things.

    Raises:
        UserError: says why the comparison would mislead.
    """
    if first.count != second.count:
        raise UserError(
            "count",
            second.count,
            f"cannot be compared with {first.count}: a chunk holds {first.per_chunk:g}"
            f" {first.count} or {second.per_chunk:g} {second.count}, so the larger rate need not be"
            " the faster stream; compare chunk periods, or use one meaning for both",
        )
