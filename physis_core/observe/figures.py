"""A benchmark's result: named figures with spread and aim, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from physis_core.observe.machine import machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number.

    `spread` is the half width between the lowest and the highest repetition, in the same unit, and
    NaN where there was one repetition. `aim` is the required bound and `better` the side that
    meets it; without an aim the figure is only reported.
    """

    value: float
    unit: str
    spread: float = math.nan
    aim: float | None = None
    better: Literal["lower", "higher"] = "lower"

    @property
    def met(self) -> bool | None:
        if self.aim is None:
            return None
        return self.value <= self.aim if self.better == "lower" else self.value >= self.aim

    def as_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "unit": self.unit,
            "spread": None if math.isnan(self.spread) else self.spread,
            "aim": self.aim,
            "met": self.met,
        }


def repeated(
    values: Sequence[float],
    unit: str,
    *,
    aim: float | None = None,
    better: Literal["lower", "higher"] = "lower",
) -> Figure:
    """The median of repetitions, with half the distance between the extremes as spread."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    spread = (ordered[-1] - ordered[0]) / 2 if len(ordered) > 1 else math.nan
    return Figure(value=median, unit=unit, spread=spread, aim=aim, better=better)


def result(figures: Mapping[str, Figure], config: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a benchmark: figures, config, machine.

    `ok` means that the benchmark ran to its end, not that every aim was met: a missed aim is a
    result too.
    """
    return {
        "ok": True,
        "figures": {name: figure.as_json() for name, figure in figures.items()},
        "config": dict(config),
        "machine": machine(),
    }


def print_figures(title: str, figures: Mapping[str, Figure], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    # Names are never cut.
    table.add_column("figure", no_wrap=True, min_width=max(map(len, figures), default=0))
    for heading in ("value", "spread", "aim", "met"):
        table.add_column(heading, justify="right")
    for name, figure in figures.items():
        sign = "<=" if figure.better == "lower" else ">="
        table.add_row(
            name,
            f"{figure.value:.4g} {figure.unit}".rstrip(),
            "" if math.isnan(figure.spread) else f"+-{figure.spread:.2g}",
            "" if figure.aim is None else f"{sign} {figure.aim:g}",
            {None: "", True: "yes", False: "NO"}[figure.met],
        )
    console.print(table)
