"""Write docs/reference/metrics.md from the nodes' table: `.venv/bin/python
scripts/metrics_page.py`.

A test compares the page with the table.
"""

from __future__ import annotations

from pathlib import Path

from physis_core.observe.histogram import BATCH_BUCKETS, JITTER_BUCKETS_S, TIME_BUCKETS_S
from physis_ros.node.metric_names import FAMILIES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "metrics.md"
HEAD = """# Metrics

What the nodes expose where `metrics_port` is set
([how to](../how-to/watch-a-running-system.md)). Each endpoint also has the process metrics of
`prometheus-client` (`process_cpu_seconds_total`, `process_resident_memory_bytes`).

Histograms count every sample since the node was configured. Upper bounds of the buckets:

"""


def page() -> str:
    buckets = (
        ("times [s]", TIME_BUCKETS_S),
        ("`physis_safety_loop_jitter_seconds` [s]", JITTER_BUCKETS_S),
        ("`physis_engine_batch_tasks`", BATCH_BUCKETS),
    )
    lines = ["| of | upper bounds |", "|---|---|"]
    lines += [f"| {of} | {', '.join(f'{b:g}' for b in upper)} |" for of, upper in buckets]
    lines += ["", "| name | kind | labels | node | meaning |", "|---|---|---|---|---|"]
    for family in FAMILIES.values():
        name = family.exposed[0] if family.kind == "counter" else family.name
        labels = ", ".join(family.labels)
        lines.append(f"| `{name}` | {family.kind} | {labels} | {family.node} | {family.help} |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
