"""Devices of a worker, made ready: weights loaded, first slow runs done, costs measured.

The first inference of a process is far slower than all later ones, and would otherwise stand in the
figures and in the predictions for ever. So every block runs here before the worker says that it is
ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

from physis_core.deployment.deployment import Deployment
from physis_core.model.loading import load, load_spec
from physis_core.model.protocol import KVWindow, ModelSpec, StagedModel
from physis_core.pipeline.costs import CostTable
from physis_core.pipeline.emulation import DurationNoise
from physis_core.pipeline.stages import Device, InFlight, Layout, Slot, Stream
from physis_core.types import UserError
from physis_core.worker.executors import EXECUTORS, EmulatedExecutor, Executor, LocalDevice
from physis_core.worker.model_runner import ModelRunner
from physis_core.worker.streams import StreamTensors

_REPEATS = 3
_LARGEST_MEASURED_BATCH = 16
_DECODER_WARM = 2
"""Runs until a decoder remembers all that it ever will."""
Points = dict[int, dict[int, float]]


def build_devices(deployment: Deployment, worker: int) -> tuple[dict[int, LocalDevice], Points]:
    """The worker's devices by index, and the costs measured on them (empty for emulated ones).

    Raises:
        UserError: model, checkpoint or device do not fit.
    """
    devices: dict[int, LocalDevice] = {}
    measured: Points = {}
    profile = deployment.cost_table()
    specs = {name: load_spec(ref) for name, ref in deployment.models.items()}
    first_keys = deployment.first_keys()
    for index in deployment.devices_of(worker):
        spec = deployment.devices[index]
        blocks = deployment.blocks_of(index)
        weights = sum(_weight_bytes(specs[name], held) for name, held in blocks.items())
        executor: Executor
        if spec.emulated:
            assert profile is not None
            noise = None
            if deployment.noise > 0.0:
                noise = DurationNoise(deployment.noise, deployment.noise_seed)
            executor = EmulatedExecutor(profile, noise)
        else:
            target = torch.device(spec.kind)
            runners: dict[str, ModelRunner] = {}
            points: Points = {}
            for name, held in blocks.items():
                model = load(deployment.models[name], held, target)
                runners[name] = ModelRunner(model, target)
                for block, row in measure(runners[name], held, deployment.max_batch).items():
                    points[first_keys[name] + block] = row
            measured.update(points)
            costs = profile if profile is not None else CostTable(points or {0: {1: 1e-3}})
            executor = EXECUTORS[target.type](target, runners, costs)
        devices[index] = LocalDevice(
            state=Device(index, executor.costs),
            executor=executor,
            weight_bytes=weights,
            activation_bytes=max(
                sum(part.bytes for part in specs[name].hidden) for name in (blocks or specs)
            ),
        )
    return devices, measured


def _weight_bytes(spec: ModelSpec, blocks: Sequence[int]) -> int:
    """`blocks` are what a device holds of the model, at least one."""
    return sum(spec.block_weight_bytes[block] for block in blocks) + spec.shared_weight_bytes


def measure(runner: ModelRunner, blocks: tuple[int, ...], max_batch: int) -> Points:
    """Shortest of a few runs of every block, at batch sizes 1, 2, 4 ... and `max_batch`, windows
    full.
    """
    sizes = [1]
    while sizes[-1] * 2 < min(max_batch, _LARGEST_MEASURED_BATCH):
        sizes.append(sizes[-1] * 2)
    if max_batch > 1:
        sizes.append(min(max_batch, _LARGEST_MEASURED_BATCH))
    samples = sample_blocks(runner, blocks, sizes, repeats=_REPEATS)
    return {
        block: {size: min(seconds) for size, seconds in row.items()}
        for block, row in samples.items()
    }


def sample_blocks(
    runner: ModelRunner,
    blocks: Sequence[int],
    sizes: Sequence[int],
    *,
    repeats: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[int, dict[int, list[float]]]:
    """Seconds of `repeats` runs by block and batch size, windows full.

    A run is a device's whole task: the first block's has the embedding in it, the last one's the
    head. A decoder works at the last step alone: its run is the mean over a chunk's steps.
    `progress` is called after each block and size.
    """
    model = runner.model
    spec = model.spec
    try:
        condition = model.condition({})
    except UserError as error:
        raise UserError(
            "condition", {}, f"a model must have a default condition to be warmed up ({error})"
        ) from None
    samples: dict[int, dict[int, list[float]]] = {}
    for block in blocks:
        # A model may insist on one cache per row, so each row has its own.
        kv = [model.new_kv(block) for _ in range(max(sizes))]
        samples[block] = {}
        decodes = spec.decoder_kv_bytes is not None and block == spec.blocks - 1
        for size in sizes:
            # A full window costs more than an empty one, and is what a stream lives with.
            warm = _DECODER_WARM if decodes else spec.window_chunks
            seconds = []
            for run in range(repeats + warm):
                # The first run is a chunk's entry, so that `inject` and the noise are warm, too.
                steps = range(spec.steps) if decodes else [0 if run == 0 else spec.steps - 1]
                took = [_run_once(runner, block, size, step, kv, condition) for step in steps]
                seconds.append(sum(took) / len(took))
            samples[block][size] = seconds[-repeats:]
            progress()
    return samples


def _run_once(
    runner: ModelRunner,
    block: int,
    size: int,
    step: int,
    kv: Sequence[KVWindow],
    condition: Mapping[str, torch.Tensor],
) -> float:
    model = runner.model
    spec = model.spec
    stage = step * spec.blocks + block
    stream = Stream(0, 0, 0, Layout(graph=spec.graph, device_of=(), blocks=(), block_s=()))
    slot = Slot(stream, Device(0, CostTable({})), stage, step, block)
    slot.writes = True
    kinds = spec.latent if block == 0 else spec.hidden
    streams: dict[int, StreamTensors] = {}
    tasks = []
    for row in range(size):
        streams[row] = StreamTensors("", seed=0, refresh="entry")
        streams[row].conditions[0] = {0: condition}
        streams[row].kv[stage] = kv[row]
        payload = tuple(
            torch.zeros(1, *s.shape, dtype=s.dtype, device=runner.device) for s in kinds
        )
        tasks.append(_task(row, slot, payload, model))
    start_s = time.monotonic()
    runner.run(tasks, streams)
    runner.synchronise()
    return time.monotonic() - start_s


def _task(row: int, slot: Slot, payload: tuple[torch.Tensor, ...], model: StagedModel) -> InFlight:
    task = InFlight(
        stream=row,
        epoch=0,
        seq=0,
        stage=slot.stage,
        block=slot.block,
        step=slot.step,
        deadline_s=0.0,
        ready_s=0.0,
        chunk_id=0,
        touches=(0,),
        payload=payload,
        observation={
            name: torch.zeros(s.shape, dtype=s.dtype).numpy()
            for name, s in model.spec.observation.items()
        },
    )
    task.slot = slot
    return task
