"""`physis bench ros-path`: capture to command through the nodes, against two other ways.

Input: two cameras of 640 x 480 at 30 Hz, and joint states. Observation, engine, buffer and safety
node each run in their own process, with a model of negligible cost; every observation starts a
chunk. The overhead is the time from the capture stamp to the command's arrival at the robot, minus
the model's own time, measured alone in this process in a loop. (Once per camera period, as it runs
in the path, the model takes half as long again, because its code and data leave the caches; that
figure is given too. What is subtracted is the smaller one, so the difference counts as overhead.)
The engine's own work counts as overhead.

The relay is one rclpy node that receives the same two images and sends a trajectory: the same
transport, executor and endpoints, and nothing in between. The websocket is openpi's way
(`physis_lab.bench.nodes.websocket_bench`): a client sends the same images and joints to a server,
which answers with the actions. It has no cameras, no action buffer and no safety controller. Runs
of the three alternate.
"""

from __future__ import annotations

import argparse
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import Progress

from physis_core.model.loading import load
from physis_core.model.reference import ReferenceStream
from physis_core.model.registry import ModelRef
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_core.observe.figures import Figure, print_figures, repeated, result
from physis_core.observe.rowlog import RowTable, read_rows
from physis_core.types import UserError
from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import JOINT_NAMES
from physis_lab.bench.arguments import require_at_least
from physis_lab.bench.nodes.websocket_bench import HOST
from physis_lab.bench.robot.processes import Watch, module_process
from physis_lab.session.session import loopback_environment
from physis_ros.node.domain import choose
from physis_ros.node.share import share_directory
from physis_ros.stack.description import load_stack
from physis_ros.stack.options import Options
from physis_ros.stack.resolution import ProcessSpec, resolve
from physis_ros.stack.supervisor import Supervisor
from physis_ros.stack.transport import remove_abandoned
from physis_ros.timeline.stream_record import CHUNKS_FILE

Times = npt.NDArray[np.float64]

CAMERAS = ("front", "wrist")
CAMERA_HZ = 30.0
START_LIMIT_S = 120.0
WARM_UP_CHUNKS = 60
"""Left out, while processes start and estimators settle."""
MODEL_RUNS = 150
LONGEST_MS = 200.0
"""A command that arrives later than this after its hand-off belongs to another chunk."""
AIM_P50_MS, AIM_P99_MS, AIM_RATIO = 8.0, 25.0, 1.5
PARTS = ("capture", "queue", "response", "handoff")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTimes:
    """Milliseconds, one value per command: the total, its four parts (their sum is the total), and
    the share of the last part after the buffer. `unmatched`: chunks without their own command.
    """

    total: Times
    parts: Mapping[str, Times]
    after_buffer: Times
    unmatched: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=15.0, help="of each path and relay run")
    parser.add_argument("--repeat", type=int, default=3, help="runs behind each spread")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    if not 2.0 <= args.seconds <= 600.0:
        raise UserError("seconds", args.seconds, "must be from 2 to 600")
    require_at_least(args, repeat=1)
    remove_abandoned()
    paths: list[PathTimes] = []
    relays: list[Times] = []
    sockets: list[Times] = []
    with tempfile.TemporaryDirectory(prefix="physis-ros-path-") as folder:
        model = Path(folder) / "null.safetensors"
        write_null_model(model)
        model_ms = model_alone_ms(model, pause_s=0.0)
        paused_ms = model_alone_ms(model, pause_s=1.0 / CAMERA_HZ)
        with Progress(console=console) as progress:
            task = progress.add_task("ros-path", total=3 * args.repeat)
            for number in range(args.repeat):
                own = Path(folder) / str(number)
                progress.update(task, description="through the nodes")
                paths.append(_through_the_nodes(own, model, args.seconds))
                progress.advance(task)
                progress.update(task, description="bare relay")
                relays.append(_through_the_relay(own, args.seconds))
                progress.advance(task)
                progress.update(task, description="websocket")
                sockets.append(_through_the_websocket(own, args.seconds))
                progress.advance(task)
    figures = _figures(paths, relays, sockets, model_ms, paused_ms)
    print_figures("Capture to command, two 640x480 cameras at 30 Hz, null model", figures, console)
    config = {
        "seconds": args.seconds,
        "repeat": args.repeat,
        "cameras": list(CAMERAS),
        "camera_hz": CAMERA_HZ,
        "commands": [int(p.total.size) for p in paths],
        "chunks_without_command": [p.unmatched for p in paths],
        "relayed": [int(r.size) for r in relays],
        "answered": [int(s.size) for s in sockets],
        "release": "on_observation",
    }
    return result(figures, config)


def _figures(
    paths: Sequence[PathTimes],
    relays: Sequence[Times],
    sockets: Sequence[Times],
    model_ms: float,
    paused_ms: float,
) -> dict[str, Figure]:
    def over(q: float) -> list[float]:
        return [float(np.percentile(p.total, q)) - model_ms for p in paths]

    def ratios(others: Sequence[Times]) -> list[float]:
        return [o / t for o, t in zip(over(50), _percentiles(others, 50), strict=True)]

    figures = {
        "ros_path.overhead_ms_p50": repeated(over(50), "ms", aim=AIM_P50_MS),
        "ros_path.overhead_ms_p99": repeated(over(99), "ms", aim=AIM_P99_MS),
        "ros_path.vs_relay": repeated(ratios(relays), "x, p50", aim=AIM_RATIO),
        "ros_path.vs_websocket": repeated(ratios(sockets), "x, p50", aim=AIM_RATIO),
        "ros_path.relay_ms_p50": repeated(_percentiles(relays, 50), "ms"),
        "ros_path.relay_ms_p99": repeated(_percentiles(relays, 99), "ms"),
        "ros_path.websocket_ms_p50": repeated(_percentiles(sockets, 50), "ms"),
        "ros_path.websocket_ms_p99": repeated(_percentiles(sockets, 99), "ms"),
        "ros_path.model_ms": Figure(value=model_ms, unit="ms"),
        "ros_path.model_with_pause_ms": Figure(value=paused_ms, unit="ms"),
    }
    for part in PARTS:
        figures[f"ros_path.{part}_ms_p50"] = repeated(
            [float(np.median(p.parts[part])) for p in paths], "ms"
        )
    figures["ros_path.after_buffer_ms_p50"] = repeated(
        [float(np.median(p.after_buffer)) for p in paths], "ms"
    )
    return figures


def _percentiles(runs: Sequence[Times], q: float) -> list[float]:
    return [float(np.percentile(times, q)) for times in runs]


def write_null_model(path: Path) -> None:
    """A random model of one block and one step that holds the arm in place."""
    torch.manual_seed(0)
    config = TinyConfig(
        joint_names=tuple(JOINT_NAMES),
        camera_names=CAMERAS,
        position_mean=tuple(float(q) for q in HOME_RAD),
        position_std=(1e-6,) * len(JOINT_NAMES),
        steps=1,
        blocks=1,
        dim=16,
        heads=2,
        ffn=16,
        keypoints=1,
        image_channels=1,
        window_chunks=1,
    )
    checkpoint.save(path, config, TinyNetwork(config).state_dict(), {})


def model_alone_ms(path: Path, *, pause_s: float) -> float:
    """Shortest time of one chunk, computed alone on one thread every `pause_s`; the shortest, so
    that never too much is subtracted from the path."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = load(ModelRef(family="tiny", checkpoint=str(path)))
        stream = ReferenceStream(model, seed=0)
        observation = {
            name: np.zeros(spec.shape, str(spec.dtype).removeprefix("torch."))
            for name, spec in model.spec.observation.items()
        }
        times_s = []
        for _ in range(MODEL_RUNS):
            time.sleep(pause_s)
            begun_s = time.perf_counter()
            stream.run_chunk({0: observation})
            times_s.append(time.perf_counter() - begun_s)
    finally:
        torch.set_num_threads(threads)
    return 1e3 * min(times_s)


def _through_the_nodes(folder: Path, model: Path, seconds: float) -> PathTimes:
    share = share_directory()
    sets = (
        # The probe is no robot that a person would have to arm.
        ("safety_node", "enabled_at_start", True),
        ("observation_node", "model", str(model)),
        ("observation_node", "max_rate_hz", 2 * CAMERA_HZ),
        ("engine_node", "model", str(model)),
        ("engine_node", "partition", "sequential"),
        ("engine_node", "devices", 1),
        ("engine_node", "workers", 0),
        ("engine_node", "max_batch", 1),
        ("engine_node", "release", "on_observation"),
        ("buffer_node", "record_path", str(folder)),
    )
    runs = resolve(load_stack("wam", share), Options(robot="ur5e", sets=sets), share)
    chunks, heard = folder / CHUNKS_FILE, folder / "path.rows"
    wanted = WARM_UP_CHUNKS + round(seconds * CAMERA_HZ)
    _run_until([run.process() for run in runs], heard, chunks, wanted)
    return match(read_rows(chunks), read_rows(heard))


def _through_the_relay(folder: Path, seconds: float) -> Times:
    heard = folder / "relay.rows"
    wanted = WARM_UP_CHUNKS + round(seconds * CAMERA_HZ)
    _run_until([_endpoint("relay", folder)], heard, heard, wanted)
    table = read_rows(heard)
    relayed = table["relayed"] == 1
    times_ms = (table["heard_ns"] - table["stamp_ns"])[relayed] / 1e6
    return np.asarray(times_ms[WARM_UP_CHUNKS:])


def _through_the_websocket(folder: Path, seconds: float) -> Times:
    """Until the answers are there: question to answer, without the first `WARM_UP_CHUNKS`."""
    heard = folder / "websocket.rows"
    wanted = WARM_UP_CHUNKS + round(seconds * CAMERA_HZ)
    port = str(_free_port())
    ends = [
        module_process(role, "physis_lab.bench.nodes.websocket_bench", role, port, str(heard))
        for role in ("server", "client")
    ]
    limit_s = START_LIMIT_S + 3.0 * wanted / CAMERA_HZ
    with Supervisor(ends, environment=loopback_environment(choose())) as supervisor:
        Watch(poll_s=0.2).until(supervisor, lambda: _rows(heard) >= wanted, "answers", limit_s)
    table = read_rows(heard)
    return np.asarray(((table["heard_ns"] - table["stamp_ns"]) / 1e6)[WARM_UP_CHUNKS:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def match(chunks: RowTable, heard: RowTable) -> PathTimes:
    """Match each chunk with the first command between its hand-off and the next one's."""
    kept = (chunks["accepted"] == 1) & (chunks["handoff_ns"] > 0)
    handoff = chunks["handoff_ns"][kept]
    arrived = heard["heard_ns"][heard["relayed"] == 0]
    index = np.searchsorted(arrived, handoff)
    command = np.append(arrived, np.inf)[index]
    until = np.minimum(np.append(handoff[1:], np.inf), handoff + LONGEST_MS * 1e6)
    matched = command < until
    matched[:WARM_UP_CHUNKS] = False
    capture, receipt, entry, exit_ = (
        chunks[name][kept][matched]
        for name in ("capture_oldest_ns", "receipt_ns", "entry_ns", "exit_ns")
    )
    command, handoff = command[matched], handoff[matched]
    edges = (capture, receipt, entry, exit_, command)
    return PathTimes(
        total=(command - capture) / 1e6,
        parts={
            part: (after - before) / 1e6
            for part, before, after in zip(PARTS, edges, edges[1:], strict=False)
        },
        after_buffer=(command - handoff) / 1e6,
        unmatched=int(kept.sum()) - WARM_UP_CHUNKS - int(matched.sum()),
    )


def _endpoint(role: str, path: Path) -> ProcessSpec:
    return module_process(role, "physis_lab.bench.nodes.path_bench", role, str(path))


def _run_until(processes: Sequence[ProcessSpec], heard: Path, log: Path, wanted: int) -> None:
    """Run until `log` holds `wanted` rows.

    Raises:
        RuntimeError: a process ended, or the rows do not come.
    """
    heard.parent.mkdir(parents=True, exist_ok=True)
    ends = [_endpoint("probe", heard), _endpoint("source", heard)]
    limit_s = START_LIMIT_S + 3.0 * wanted / CAMERA_HZ
    with Supervisor([*ends, *processes], environment=loopback_environment(choose())) as supervisor:
        Watch(poll_s=0.2).until(
            supervisor, lambda: _rows(log) >= wanted, f"{wanted} rows in {log.name}", limit_s
        )


def _rows(path: Path) -> int:
    return read_rows(path).rows if path.exists() and path.stat().st_size else 0
