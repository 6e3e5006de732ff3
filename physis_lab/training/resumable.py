"""A training run that can be interrupted at any time and resumes exactly.

Every batch is a function of (seed, step). The result is the moving average of the weights.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from physis_core.types import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """AdamW with a linear warm-up and a cosine to zero."""

    steps: int
    rows: int
    seed: int = 1
    learning_rate: float = 1.5e-3
    warmup_steps: int = 100
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    average_decay: float = 0.995
    save_every: int = 250

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "save_every", "warmup_steps"):
            if getattr(self, name) < 1:
                raise UserError(name, getattr(self, name), "must be at least 1")
        if not self.learning_rate > 0:
            raise UserError("learning_rate", self.learning_rate, "must be above 0")

    def rate(self, step: int) -> float:
        """Learning rate of step 0 .. steps - 1."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return self.learning_rate * warm * 0.5 * (1.0 + math.cos(math.pi * step / self.steps))


class ResumableTrainer(ABC):
    """Network, optimiser, moving average, and the losses so far.

    Args:
        beside: modules that are trained with the network but are not part of the result, by their
            name in the state file.
        labels: names of the parts that `losses` returns.
    """

    history_key = "history"
    """Name of the loss history in the state file."""

    def __init__(
        self,
        config: RunConfig,
        network: nn.Module,
        labels: Sequence[str],
        beside: Mapping[str, nn.Module] | None = None,
    ) -> None:
        self.config = config
        self.network = network
        self.labels = tuple(labels)
        self.beside = dict(beside or {})
        modules = (network, *self.beside.values())
        self.trained = [p for m in modules for p in m.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained,
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            betas=(0.9, 0.98),
        )
        self.average = {n: p.detach().clone() for n, p in network.state_dict().items()}
        self.step = 0
        self.history: list[tuple[float, ...]] = []

    @abstractmethod
    def losses(self, random: np.random.Generator) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss of one batch, and its parts as named by `labels`."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Figures of the averaged weights on held-out data."""

    @abstractmethod
    def write(self, out: Path, found: Mapping[str, float]) -> None:
        """Write the checkpoint atomically."""

    @abstractmethod
    def identity(self) -> str:
        """Settings that must be equal for a run to be resumed."""

    def advance(self) -> None:
        """One step of the optimiser."""
        random = np.random.default_rng([self.config.seed, self.step])
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.rate(self.step)
        total, parts = self.losses(random)
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.trained, self.config.gradient_clip)
        self.optimizer.step()
        self.step += 1
        # Early on a smaller decay, so that the random start does not remain in the average.
        decay = min(self.config.average_decay, self.step / (self.step + 10.0))
        for name, value in self.network.state_dict().items():
            kept = self.average[name]
            if kept.is_floating_point():
                kept.lerp_(value, 1.0 - decay)
            else:
                kept.copy_(value)
        self.history.append(tuple(part.item() for part in parts))

    def save_state(self, path: Path) -> None:
        partial = path.with_name(path.name + ".partial")
        torch.save(
            {
                "identity": self.identity(),
                "step": self.step,
                "network": self.network.state_dict(),
                **{name: module.state_dict() for name, module in self.beside.items()},
                "optimizer": self.optimizer.state_dict(),
                "average": self.average,
                self.history_key: torch.tensor(self.history, dtype=torch.float64),
            },
            partial,
        )
        partial.replace(path)

    def load_state(self, path: Path) -> None:
        """Raises UserError where the state is of a run with other settings."""
        state: Mapping[str, Any] = torch.load(path, weights_only=True)
        if state["identity"] != self.identity():
            raise UserError(
                "out", str(path), "is the state of a run with other settings; remove it"
            )
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        for name, module in self.beside.items():
            module.load_state_dict(state[name])
        self.optimizer.load_state_dict(state["optimizer"])
        average: dict[str, Tensor] = state["average"]
        self.average = average
        self.history = [tuple(float(x) for x in row) for row in state[self.history_key]]


def run(trainer: ResumableTrainer, out: Path, state_file: Path) -> dict[str, float]:
    """Train to the end, saving every `save_every` steps; returns the last validation."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if state_file.exists():
        trainer.load_state(state_file)
        print(f"resuming from step {trainer.step}", file=sys.stderr)
    steps, begun, begun_s = trainer.config.steps, trainer.step, time.monotonic()
    found: dict[str, float] = {}
    while trainer.step < steps:
        trainer.advance()
        if trainer.step % 25 == 0:
            recent = np.mean(trainer.history[-25:], axis=0)
            left_s = (time.monotonic() - begun_s) / (trainer.step - begun) * (steps - trainer.step)
            said = "  ".join(f"{name} {x:.5f}" for name, x in zip(trainer.labels, recent))
            print(
                f"step {trainer.step}/{steps}  {said}  {left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
        if trainer.step % trainer.config.save_every == 0 or trainer.step == steps:
            found = trainer.validate()
            trainer.write(out, found)
            trainer.save_state(state_file)
            draw_history(out.with_suffix(".png"), trainer.labels, trainer.history)
            said = "  ".join(f"{name} {x:.4g}" for name, x in found.items())
            print(f"step {trainer.step}: saved; held out: {said}", file=sys.stderr, flush=True)
    return found


def draw_history(path: Path, labels: Sequence[str], history: Sequence[tuple[float, ...]]) -> None:
    """Losses per step, smoothed over 1 % of the run, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    values = np.asarray(history, dtype=np.float64)
    width = max(1, len(values) // 100)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for column, label in enumerate(labels):
        smooth = np.convolve(values[:, column], np.ones(width) / width, mode="valid")
        axes.plot(np.arange(len(smooth)) + width, smooth, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("mean square error")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
