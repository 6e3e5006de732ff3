"""How far the simulator is from the engine, case by case, as figures and as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from physis_core.observe.figures import Figure, repeated
from physis_lab.bench.engine.engine_profile import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of all streams together, after the settling. `parts` are means over all chunks, the response
    is the mean of the streams' medians.
    """

    interval_s: float
    response_s: float
    missed: float
    parts: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One case, once. `simulated` at the speed that the machine had in the engine's run,
    `as_profiled` at that of the profile; `slowness`: the first over the second, all devices and
    the whole run (median).
    """

    real: Outcome
    simulated: Outcome
    as_profiled: Outcome
    slowness: float


Pairs = Sequence[tuple[Outcome, Outcome]]
Errors = tuple[Figure, Figure, Figure]


def errors_of(outcomes: Pairs) -> Errors:
    """Median over the rounds of |simulated - real|, relative but for the misses."""
    interval = [abs(s.interval_s / r.interval_s - 1.0) for r, s in outcomes]
    response = [abs(s.response_s / r.response_s - 1.0) for r, s in outcomes]
    missed = [100.0 * abs(s.missed - r.missed) for r, s in outcomes]
    return repeated(interval, "share"), repeated(response, "share"), repeated(missed, "pp")


def worst(rows: Mapping[str, Errors], index: int, unit: str, aim: float | None = None) -> Figure:
    largest = max((errors[index] for errors in rows.values()), key=lambda figure: figure.value)
    return Figure(value=largest.value, unit=unit, spread=largest.spread, aim=aim)


def median(rows: Mapping[str, Errors], index: int, unit: str) -> Figure:
    return Figure(
        value=float(np.median([errors[index].value for errors in rows.values()])), unit=unit
    )


def engine_spread(pairs: Mapping[str, Pairs]) -> Figure:
    """Half the range of the engine's own responses over the rounds, each over its interval, as a
    share of their median, in the worst case: nothing that predicts them can be closer.
    """
    shares = []
    for outcomes in pairs.values():
        own = [real.response_s / real.interval_s for real, _ in outcomes]
        shares.append(0.5 * (max(own) - min(own)) / float(np.median(own)))
    return Figure(value=max(shares), unit="share")


def drift(slowness: Sequence[float]) -> Figure:
    """By how much the machine was slower or faster in a compared run than in the profile around
    it, the largest of all: what no simulator can know.
    """
    return Figure(value=max(abs(factor - 1.0) for factor in slowness), unit="share")


def print_rows(
    rows: Mapping[str, Errors],
    pairs: Mapping[str, Pairs],
    console: Console,
) -> None:
    """Two lines a case: the engine, and the simulator with its errors."""
    table = Table(
        title="engine and simulator, ms, median of the rounds; compute, queue and link are the mean"
        " parts of a response",
        title_justify="left",
    )
    table.add_column("case")
    for heading in ("", "interval", "response", "compute", "queue", "link", "missed"):
        table.add_column(heading, justify="right" if heading else "left")
    for case, errors in rows.items():
        for name, outcomes in (
            ("engine", [real for real, _ in pairs[case]]),
            ("simulator", [simulated for _, simulated in pairs[case]]),
        ):
            values = [
                1e3 * float(np.median([pick(outcome) for outcome in outcomes])) for pick in _COLUMNS
            ]
            missed = 100.0 * float(np.median([outcome.missed for outcome in outcomes]))
            table.add_row(
                case if name == "engine" else "",
                name,
                *(f"{value:.2f}" for value in values),
                f"{missed:.1f}%",
            )
        table.add_row(
            "",
            "error",
            f"{100 * errors[0].value:.1f}%",
            f"{100 * errors[1].value:.1f}%",
            *("",) * 3,
            f"{errors[2].value:.1f} pp",
            end_section=True,
        )
    console.print(table)


_COLUMNS: tuple[Callable[[Outcome], float], ...] = (
    lambda outcome: outcome.interval_s,
    lambda outcome: outcome.response_s,
    lambda outcome: outcome.parts.compute_s,
    lambda outcome: outcome.parts.queue_s,
    lambda outcome: outcome.parts.link_s,
)
