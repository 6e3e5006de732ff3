"""How much a stream's actions change by a loss: rebuilt from its outputs, or with empty KV.

Computed with the reference, so that only the KV differs; noise, observations and conditions are
equal. The baseline is the stream that was never interrupted. For scale, the effect of another noise
seed on the same stream is given too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from physis_core.model.loading import load
from physis_core.model.protocol import Payload, StagedModel
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.observe.figures import Figure, repeated
from physis_core.types import Array

WAYS = ("rebuilt", "empty", "redrawn")
_STREAMS = 5
_EPISODE_S = 12.0
_LOSS_EVERY = 25
"""Chunks between two losses of an episode; each starts from the uninterrupted stream."""

Seen = Mapping[str, Array]


def synthetic_quality(config: Mapping[str, Any]) -> dict[str, Figure]:
    """RMS of the difference over the next H chunks, relative to the RMS of the actions."""
    model = load(ModelRef(family="synthetic", config=dict(config)))
    window = model.spec.window_chunks
    rng = np.random.default_rng(0)
    shapes = {name: spec.shape for name, spec in model.spec.observation.items()}
    off: dict[str, list[float]] = defaultdict(list)
    for seed in range(_STREAMS):
        seen = [
            {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
            for _ in range(4 * window)
        ]
        actions = _actions_after(model, seen[: 3 * window], seen[3 * window :], seed)
        size = float(actions["whole"].square().mean().sqrt())
        for way in WAYS:
            off[way].append(float((actions[way] - actions["whole"]).square().mean().sqrt()) / size)
    kv = model.spec.kv
    return {f"recovery.{way}_off_{kv}": repeated(off[way], "relative RMS") for way in WAYS}


def trained_quality(checkpoint: Path) -> dict[str, Figure]:
    """Median and p99 over joints, points and chunks of the difference in rad.

    With a trained policy, on the observations of arms that it moves itself.
    """
    model = load(ModelRef(family="tiny", checkpoint=str(checkpoint)))
    window = model.spec.window_chunks
    off: dict[str, list[torch.Tensor]] = defaultdict(list)
    for seed in range(3):
        seen = _observations(model, seed)
        for loss in range(_LOSS_EVERY, len(seen) - window, _LOSS_EVERY):
            actions = _actions_after(model, seen[:loss], seen[loss : loss + window], seed)
            for way in WAYS:
                off[way].append((actions[way] - actions["whole"]).abs().flatten())
    figures = {}
    for way in WAYS:
        # One value per loss: the spread is over losses.
        medians = [float(values.median()) for values in off[way]]
        largest = [float(torch.quantile(values, 0.99)) for values in off[way]]
        figures[f"recovery.{way}_off_trained_p50"] = repeated(medians, "rad")
        figures[f"recovery.{way}_off_trained_p99"] = repeated(largest, "rad")
    return figures


def _actions_after(
    model: StagedModel, before: Sequence[Seen], after: Sequence[Seen], seed: int
) -> dict[str, torch.Tensor]:
    """Actions [chunks, ...] from `after`, by each of WAYS and by the `whole` stream."""
    first = ReferenceStream(model, seed=seed)
    past: list[Payload] = []
    for seen in before:
        first.run_chunk({0: seen})
        past.append(first.clean)
    epochs = {"whole": 1, "rebuilt": 1, "empty": 1, "redrawn": 2}
    streams = {way: ReferenceStream(model, seed=seed, epoch=epoch) for way, epoch in epochs.items()}
    for way in ("whole", "redrawn"):
        streams[way].restore(first.snapshot())
    sink = model.spec.sink_chunks
    last = past[max(sink, len(past) - (model.spec.window_chunks - sink)) :]
    streams["rebuilt"].rebuild([*past[:sink], *last])
    return {
        way: torch.stack([stream.run_chunk({0: seen})["action"] for seen in after])
        for way, stream in streams.items()
    }


def _observations(model: StagedModel, seed: int) -> list[Seen]:
    """Observations, one per chunk, of a simulated arm that the model moves."""
    # Imported here, so that the other parts of the benchmark need no simulator.
    from physis_core.model.image_input import resize_rgb
    from physis_lab.arm.camera import Camera
    from physis_lab.arm.plant import Plant
    from physis_lab.arm.scene import build_model
    from physis_lab.evaluation.closed_loop import RENDER_SIZE, ClosedLoopConfig, run
    from physis_lab.tasks.task import make_task

    height, width = model.spec.observation["image"].shape[1:3]
    config = ClosedLoopConfig(episodes=1, first_seed=100 + seed, duration_s=_EPISODE_S)
    stream = ReferenceStream(model, seed=seed)
    seen: list[Seen] = []

    class Recording:
        step_s = 0.05

        def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
            (plant,) = plants
            image = resize_rgb(camera.render(plant.data), (height, width))
            seen.append(
                {
                    "image": image[None],
                    "joint_positions": plant.position.astype(np.float32),
                    "lookahead_s": np.full(1, lookahead_s, np.float32),
                }
            )
            action: Array = stream.run_chunk({0: seen[-1]})["action"].numpy()[None]
            return action

    with Camera(build_model(), width=RENDER_SIZE, height=RENDER_SIZE) as camera:
        run(Recording(), [make_task(config.task, config.first_seed)], config)
    return seen
