"""Shared options and main function of the training commands on rendered frames."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch

from physis_core.types import UserError
from physis_lab.training.resumable import ResumableTrainer, RunConfig, run


def add_run_options(
    parser: argparse.ArgumentParser,
    *,
    steps: int,
    rows: int,
    row: str,
    rate: float,
    seed: int = 1,
) -> None:
    """Options with these defaults; `row` names the unit of `--rows`."""
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--rows", type=int, default=rows, help=f"{row} per batch")
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--seed", type=int, default=seed)


def train_on_frames(
    parser: argparse.ArgumentParser,
    make: Callable[[argparse.Namespace, RunConfig], ResumableTrainer],
) -> int:
    """Run the trainer that `make` builds, with its state beside `--frames`. Returns the exit code.

    `parser` has `--frames` and `--out` besides the run options.
    """
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        config = RunConfig(
            steps=args.steps, rows=args.rows, seed=args.seed, learning_rate=args.rate
        )
        run(make(args, config), args.out, args.frames / (args.out.name + ".state"))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0
