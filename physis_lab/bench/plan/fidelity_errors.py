"""Errors of the simulator against the engine per case, as figures and as a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from physis_core.observe.figures import Figure, repeated
from physis_lab.bench.engine.engine_profile import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseTimes:
    """Times of all streams after settling: the mean of their mean intervals and median responses,
    the share of missed deadlines, and the mean parts of a response.
    """

    interval_s: float
    response_s: float
    missed: float
    parts: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run of one case. `simulated`: at the machine's speed during the engine's run;
    `as_profiled`: at the speed of the profile. `slowness`: median duration of a batch in the run,
    relative to the profile.
    """

    real: CaseTimes
    simulated: CaseTimes
    as_profiled: CaseTimes
    slowness: float


Pairs = Sequence[tuple[CaseTimes, CaseTimes]]
Errors = tuple[Figure, Figure, Figure]


def errors_of(outcomes: Pairs) -> Errors:
    """Median over the rounds of |simulated - real|: relative, for misses in percentage points."""
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
    """Half the range of response / interval of the engine over the rounds, relative to the median,
    in the worst case. No prediction can be closer than this.
    """
    shares = []
    for outcomes in pairs.values():
        own = [real.response_s / real.interval_s for real, _ in outcomes]
        shares.append(0.5 * (max(own) - min(own)) / float(np.median(own)))
    return Figure(value=max(shares), unit="share")


def drift(slowness: Sequence[float]) -> Figure:
    """Largest change of the machine's speed between a compared run and its profile, which no
    simulator can predict.
    """
    return Figure(value=max(abs(factor - 1.0) for factor in slowness), unit="share")


def print_rows(
    rows: Mapping[str, Errors],
    pairs: Mapping[str, Pairs],
    console: Console,
) -> None:
    """Three lines per case: engine, simulator, and the errors."""
    table = Table(
        title="Engine and simulator in ms, medians of the rounds; compute, queue and link are mean"
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


_COLUMNS: tuple[Callable[[CaseTimes], float], ...] = (
    lambda outcome: outcome.interval_s,
    lambda outcome: outcome.response_s,
    lambda outcome: outcome.parts.compute_s,
    lambda outcome: outcome.parts.queue_s,
    lambda outcome: outcome.parts.link_s,
)
