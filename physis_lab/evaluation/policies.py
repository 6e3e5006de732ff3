"""Policies of the fast closed loop: a checkpoint, and the scripted expert."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from physis_core.model.image_input import resize_rgb
from physis_core.model.tiny.loading import load_actions
from physis_core.model.tiny.model import TinyModel
from physis_core.types import Array
from physis_lab.arm.camera import Camera
from physis_lab.arm.kinematics import Kinematics
from physis_lab.arm.plant import Plant
from physis_lab.tasks.expert import approach, ideal
from physis_lab.tasks.push_expert import push_moves
from physis_lab.tasks.task import Task
from physis_lab.training.staged_batch import StagedBatch


class ActionPolicy(Protocol):
    """Makes one chunk for each episode, all at one instant."""

    @property
    def step_s(self) -> float: ...

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        """[E, K, J] rad, point k at now_s + lookahead_s + k * step_s."""
        ...


@runtime_checkable
class RefreshingPolicy(ActionPolicy, Protocol):
    """A policy whose chunks may take a newer observation at each later denoising step."""

    def observe(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        """Observe for chunk number `chunk`; the call of `chunks` is its last observation."""
        ...


class ModelPolicy:
    """A checkpoint on camera pixels and joint positions, one stream per episode."""

    def __init__(
        self,
        checkpoint: Path | TinyModel,
        camera: Camera,
        *,
        episodes: int,
        noise_seed: int = 0,
    ) -> None:
        model = checkpoint if isinstance(checkpoint, TinyModel) else load_actions(checkpoint)
        self._config = model.config
        self._camera = camera
        self._streams = StagedBatch(model, rows=episodes, seed=noise_seed)
        self._next = 0
        self._observed: dict[int, list[dict[str, torch.Tensor]]] = {}

    @property
    def step_s(self) -> float:
        return self._config.step_s

    def observe(self, chunk: int, plants: Sequence[Plant], lookahead_s: float) -> None:
        self._observed.setdefault(chunk, []).append(self._observation(plants, lookahead_s))

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        observed = [*self._observed.pop(self._next, []), self._observation(plants, lookahead_s)]
        self._next += 1
        outputs = self._streams.run_chunk(observed[0], dict(enumerate(observed[1:], start=1)))
        return outputs["action"].numpy().astype(np.float64)

    def _observation(self, plants: Sequence[Plant], lookahead_s: float) -> dict[str, torch.Tensor]:
        size = self._config.image_size
        images = [resize_rgb(self._camera.render(plant.data), size) for plant in plants]
        joints = np.stack([plant.position for plant in plants]).astype(np.float32)
        return {
            "image": torch.from_numpy(np.stack(images)).unsqueeze(1),
            "joint_positions": torch.from_numpy(joints),
            "lookahead_s": torch.full((len(plants), 1), lookahead_s),
        }


class ExpertPolicy:
    """The scripted expert: it knows the ball's whole path, and the true joints and object."""

    def __init__(self, tasks: Sequence[Task], kinematics: Kinematics, step_s: float) -> None:
        self._tasks = tasks
        self._kinematics = kinematics
        self._step_s = step_s
        self._points = 8

    @property
    def step_s(self) -> float:
        return self._step_s

    def chunks(self, now_s: float, plants: Sequence[Plant], lookahead_s: float) -> Array:
        wanted_s = lookahead_s + self._step_s * np.arange(self._points)
        fine_s = self._step_s * np.arange(int(np.ceil(wanted_s[-1] / self._step_s)) + 2)
        out = []
        for moves in self._moves(now_s, plants, fine_s):
            out.append(
                np.stack([np.interp(wanted_s, fine_s, moves[:, j]) for j in range(6)], axis=1)
            )
        return np.stack(out)

    def _moves(self, now_s: float, plants: Sequence[Plant], fine_s: Array) -> Array:
        """Paths from each robot's present state: [E, len(fine_s), 6] rad."""
        joints = np.stack([plant.position for plant in plants])
        objects = [plant.object_position for plant in plants]
        known = [position for position in objects if position is not None]
        if known:
            marks = np.stack([task.goal(now_s) for task in self._tasks])
            return push_moves(
                self._kinematics,
                joints,
                np.stack(known),
                marks,
                points=len(fine_s),
                step_s=self._step_s,
            )
        paths = [ideal(self._kinematics, task, now_s + fine_s) for task in self._tasks]
        return approach(joints, np.stack(paths), self._step_s)
