"""Checks of numeric arguments that all benchmarks share."""

from __future__ import annotations

import argparse

from physis_core.types import UserError


def require_at_least(args: argparse.Namespace, **least: int) -> None:
    """Check the arguments named by the keywords against their lower bounds.

    Raises:
        UserError: an argument is below its bound.
    """
    for name, low in least.items():
        value = getattr(args, name)
        if value < low:
            raise UserError(name, value, f"must be at least {low}")
