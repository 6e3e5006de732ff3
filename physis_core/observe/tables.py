"""Results printed for a person. Needs `rich`; nothing that runs on a robot imports this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def print_table(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    left: Sequence[str] = (),
) -> None:
    """Columns are right-aligned, those named in `left` are not."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right")
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """The report of a run: every number with its meaning."""
    print_times(report, console)
    for title, part in (("Task", report["task"]), ("Safety", report["safety"])):
        console.print(
            f"{title}: " + ", ".join(f"{k} {_short(v)}" for k, v in part.items()),
            markup=False,
            highlight=False,
        )


def print_times(report: Mapping[str, Any], console: Console) -> None:
    """The time part of a report: percentiles, rates, misses."""
    age, parts = report["action_age_ms"], report["parts_ms"]
    rows = [
        ("output interval (between chunks; not a latency)", report["output_interval_ms"]),
        ("response latency (observation in, chunk out)", report["response_latency_ms"]),
        ("action age at hand-off", age["handoff"]),
        ("action age at every servo tick", age["servo"]),
        ("  part: capture (sensor stamp to receipt)", parts["capture"]),
        ("  part: queue (receipt to engine entry)", parts["queue"]),
        ("  part: response (entry to chunk exit)", parts["response"]),
        ("  part: handoff (exit to command out)", parts["handoff"]),
    ]
    print_table(
        console,
        "Time, in milliseconds",
        ("what", "p50", "p99", "p99.9", "max", "samples"),
        (
            (label, *(f"{p[k]:.1f}" for k in ("p50", "p99", "p999", "max")), p["n"])
            for label, p in rows
        ),
        left=("what",),
    )
    rates = report["rates_hz"]
    console.print(
        "Rates: "
        + ", ".join(
            f"{name} {rates[name]:.1f} Hz" for name in ("sensor", "replan", "chunk", "servo")
        )
    )
    console.print(
        f"Chunks {report['chunks']}, dropped {report['dropped']}, "
        f"deadline misses {report['deadline_misses']}, underruns {report['underruns']} "
        f"(the first {report['warmup_s']:.1f} s are left out: start of the engine, warm-up)"
    )


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return " / ".join(f"{k} {_short(v)}" for k, v in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
