"""Benchmarks, one file each: `add_arguments(parser)` and `run(args, console) -> result`.

A benchmark measures ratios inside one run, states its spread, and prints the same figures that its
JSON holds (physis_core.observe.figures). It takes the machine's cores for itself: nothing else
should run.
"""
