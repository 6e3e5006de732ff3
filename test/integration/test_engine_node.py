"""The engine node as a process: observations in, chunks out, epochs, refusals, lost workers."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import third_family
import torch
from rclpy.event_handler import SubscriptionEventCallbacks
from rosgraph_msgs.msg import Clock

from physis_core.deployment.profile import BlockCost, ModelProfile
from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import TinyConfig
from physis_core.model.tiny.network import TinyNetwork
from physis_ros.msg import Observation
from physis_ros.node.image_messages import rgb_to_image
from physis_ros.node.interfaces import (
    ACTION_CHUNK,
    CLOSE_STREAM,
    DIAGNOSTICS,
    OBSERVATION,
    OPEN_STREAM,
    Topic,
    action_chunk,
    in_namespace,
    sensor_data,
)
from physis_ros.node.time_messages import ns_to_time, time_to_ns
from physis_ros.srv import CloseStream, OpenStream

JOINTS = ("a_joint", "b_joint")
QUICK = ("workers:=0", "devices:=1", "partition:=sequential", "max_batch:=1")


def random_policy(path: Path, joint_names: tuple[str, ...], blocks: int) -> Path:
    torch.manual_seed(0)
    config = TinyConfig(
        joint_names=joint_names,
        camera_names=("front",),
        position_mean=(0.0,) * len(joint_names),
        position_std=(1.0,) * len(joint_names),
        image_size=(32, 32),
        steps=2,
        blocks=blocks,
        dim=16,
        heads=2,
        ffn=32,
        keypoints=4,
        image_channels=4,
        window_chunks=2,
    )
    checkpoint.save(path, config, TinyNetwork(config).state_dict(), {})
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model of two joints."""
    return random_policy(tmp_path_factory.mktemp("checkpoint") / "small.safetensors", JOINTS, 2)


class Robot:
    """Publishes observations of one stream, as observation_node would."""

    def __init__(self, ros: Any, stream_id: str = "arm", namespace: str = "") -> None:
        self.stream_id = stream_id
        self.joint_names = list(JOINTS)
        self.camera_names = ["front"]
        self.size = 32
        self.instruction = ""
        self.sim_ns = 0
        self.number = 0
        self._ros = ros
        self._out = ros.publisher(in_namespace(OBSERVATION, namespace))
        ros.every(0.05, self.publish)

    def publish(self) -> None:
        now_ns = self.sim_ns or self._ros.node.get_clock().now().nanoseconds
        message = Observation(stream_id=self.stream_id, observation_id=self.number)
        self.number += 1
        message.capture_oldest = ns_to_time(now_ns - 10_000_000)
        message.capture_newest = ns_to_time(now_ns - 5_000_000)
        message.header.stamp = message.capture_newest
        message.receipt = ns_to_time(now_ns)
        image = np.full((self.size, self.size, 3), 100, dtype=np.uint8)
        message.camera_names = self.camera_names
        message.images = [rgb_to_image(image, stamp=message.capture_newest, frame_id="front")]
        message.joint_names = self.joint_names
        message.positions = [0.1] * len(self.joint_names)
        message.instruction = self.instruction
        self._out.publish(message)


def test_chunks_flow_with_ordered_stamps_and_placed_points(ros: Any, small: Path) -> None:
    chunks = ros.listen(ACTION_CHUNK)
    Robot(ros)
    engine = ros.start("engine_node", f"model:={small}", *QUICK)
    ros.wait(lambda: len(chunks) >= 25, "25 chunks")
    for chunk in chunks:
        assert chunk.stream_id == "arm"
        assert chunk.joint_names == list(JOINTS)
        assert len(chunk.positions) == 8 * len(JOINTS)
        assert np.isfinite(chunk.positions).all()
        stamps = [chunk.capture_oldest, chunk.capture_newest, chunk.receipt]
        stamps += [chunk.entry, chunk.header.stamp]
        times_ns = [time_to_ns(stamp) for stamp in stamps]
        assert times_ns == sorted(times_ns)
        assert time_to_ns(chunk.start) >= time_to_ns(chunk.capture_newest)
        assert chunk.step.nanosec == 50_000_000
        assert not chunk.clock_suspect
    ids = [chunk.chunk_id for chunk in chunks]
    assert ids == sorted(ids)
    assert len({chunk.epoch for chunk in chunks}) == 1
    ros.wait_for_diagnosis("stream arm", "streaming")
    assert ros.stop(engine) == 0


DEPLOYMENT = """
models:
  two: {model: two.safetensors}
  three: {model: three.safetensors}
devices: [{kind: cpu}]
routes:
  two: {model: two, partition: sequential, devices: [0]}
  three: {model: three, partition: sequential, devices: [0]}
streams:
  - {name: left, routes: [two], slo: {count: action_chunks, per_chunk: 1, period_ms: 100}}
engine: {workers: 0, max_batch: 2}
"""


def test_a_deployment_serves_two_models_to_robots_of_other_joints(
    ros: Any, small: Path, tmp_path: Path
) -> None:
    shutil.copy(small, tmp_path / "two.safetensors")
    joints = ("c_joint", "d_joint", "e_joint")
    random_policy(tmp_path / "three.safetensors", joints, 3)
    file = tmp_path / "deployment.yaml"
    file.write_text(DEPLOYMENT)
    of_two = ros.listen(in_namespace(ACTION_CHUNK, "left"))
    of_three = ros.listen(in_namespace(ACTION_CHUNK, "right"))
    Robot(ros, "left", "left")
    robot = Robot(ros, "right", "right")
    robot.joint_names = list(joints)
    engine = ros.start("engine_node", f"deployment:={file}")
    ros.wait(lambda: len(of_two) >= 5, "5 chunks of the file's stream")
    opened = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right", model="nobody"))
    assert opened.reason == "model: 'nobody': must be one of two, three"
    opened = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right", model="three"))
    assert opened.admitted, opened.reason
    ros.wait(lambda: len(of_three) >= 5, "5 chunks of the stream that was opened later")
    assert of_two[-1].joint_names == list(JOINTS)
    assert of_three[-1].joint_names == list(joints)
    assert ros.stop(engine) == 0


def test_a_family_of_an_installed_package_moves_joints_in_workers_too(
    ros: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = third_family.install(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", f"{packages}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    model = third_family.write_model(tmp_path / "small.hop")
    chunks = ros.listen(ACTION_CHUNK)
    robot = Robot(ros)
    robot.joint_names = list(third_family.JOINTS)
    robot.camera_names = [third_family.CAMERA]
    robot.size = third_family.SIZE[0]
    engine = ros.start("engine_node", f"model:={model}", "workers:=1", "devices:=2")
    ros.wait(lambda: len(chunks) >= 5, "5 chunks")
    assert chunks[-1].joint_names == list(third_family.JOINTS)
    assert len(chunks[-1].positions) == third_family.STEPS * len(third_family.JOINTS)
    assert "small.hop: 2 steps x 2 blocks" in ros.log(engine)
    assert ros.stop(engine) == 0


def test_bad_observations_are_named_and_the_engine_goes_on(ros: Any, small: Path) -> None:
    chunks = ros.listen(ACTION_CHUNK)
    robot = Robot(ros)
    node = ros.start("engine_node", f"model:={small}", *QUICK)
    ros.wait(lambda: chunks, "a chunk")
    robot.joint_names = ["a_joint", "other_joint"]
    ros.wait_for_diagnosis("stream arm", "joint 'b_joint' is missing")
    robot.joint_names = list(JOINTS)
    robot.camera_names = ["wrist"]
    ros.wait_for_diagnosis("stream arm", "camera 'front' is missing")
    robot.camera_names = ["front"]
    robot.size = 48
    ros.wait_for_diagnosis("stream arm", "the model takes [32, 32, 3]")
    robot.size = 32
    robot.stream_id = "other"
    ros.wait_for_diagnosis("stream arm", "observation.stream_id: 'other'")
    robot.stream_id = "arm"
    robot.instruction = "wave " * 2000
    ros.wait_for_diagnosis("stream arm", "streaming")
    before = len(chunks)
    ros.wait(lambda: len(chunks) > before + 3, "chunks again")
    ros.wait(lambda: "instruction" in ros.log(node), "the refused instruction in the log")
    assert max(map(len, ros.log(node).splitlines())) < 400


def test_streams_open_and_close_by_service_in_namespaces(ros: Any, small: Path) -> None:
    left = ros.listen(in_namespace(ACTION_CHUNK, "left"))
    right = ros.listen(in_namespace(ACTION_CHUNK, "right"))
    Robot(ros, "arm", "left")
    Robot(ros, "right", "right")
    node = ros.start(
        "engine_node",
        f"model:={small}",
        *QUICK,
        "stream_ids:=[arm]",
        "stream_namespaces:=[left]",
    )
    ros.wait(lambda: len(left) > 3, "chunks of the first robot")
    assert not right
    opened = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right"))
    assert opened.admitted, opened.reason
    ros.wait(lambda: len(right) > 3, "chunks of the second robot")
    first_epoch = right[-1].epoch
    assert first_epoch == opened.epoch
    again = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right"))
    assert not again.admitted
    assert "is open already" in again.reason
    closed = ros.call(CLOSE_STREAM, CloseStream.Request(stream_id="right", drain=True))
    assert closed.closed
    # Observations came while it closed, and come still.
    assert "[ERROR]" not in ros.log(node)
    unknown = ros.call(CLOSE_STREAM, CloseStream.Request(stream_id="right"))
    assert "no such stream" in unknown.reason
    refused = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right", instruction="wave"))
    assert not refused.admitted
    assert "instruction" in refused.reason
    right.clear()
    opened = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right"))
    assert opened.admitted
    ros.wait(lambda: right and right[-1].epoch > first_epoch, "chunks of the stream opened again")
    before = len(left)
    ros.wait(lambda: len(left) > before + 3, "chunks of the robot that was not touched")


def test_with_a_profile_streams_are_admitted_by_the_planner(
    ros: Any, small: Path, tmp_path: Path
) -> None:
    cost = BlockCost(weight_bytes=1e6, p50_s={1: 0.02}, p99_s={1: 0.02})
    profile = ModelProfile(
        name="small",
        source="measured",
        device="",
        steps=2,
        blocks=2,
        kv="noisy",
        window_chunks=2,
        sink_chunks=0,
        kv_bytes=1e6,
        hidden_bytes=1e3,
        activation_bytes=0.0,
        shared_weight_bytes=0.0,
        block_costs=(cost, cost),
    )
    profile.save(tmp_path / "profile.yaml")
    Robot(ros, "arm", "")
    chunks = ros.listen(ACTION_CHUNK)
    ros.start(
        "engine_node",
        f"model:={small}",
        *QUICK,
        f"profile:={tmp_path / 'profile.yaml'}",
        "period_s:=0.2",
    )
    ros.wait(lambda: len(chunks) > 3, "chunks of the first robot")
    # Each stream takes 80 ms of the one worker in each period.
    asked = [ros.call(OPEN_STREAM, OpenStream.Request(stream_id=f"r{i}")) for i in range(3)]
    refused = [answer for answer in asked if not answer.admitted]
    assert refused
    assert "worker 0" in refused[-1].reason or "in simulation" in refused[-1].reason
    assert "carries now" in refused[-1].reason
    assert "(short of time on " in refused[-1].reason
    slow = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="slow", period_s=10.0))
    assert slow.admitted, slow.reason
    assert ros.call(CLOSE_STREAM, CloseStream.Request(stream_id="slow")).closed


def test_a_killed_worker_ends_the_engine_and_its_successor_has_a_higher_epoch(
    ros: Any, small: Path
) -> None:
    chunks = ros.listen(ACTION_CHUNK)
    Robot(ros)
    parameters = (f"model:={small}", "workers:=2", "devices:=2")
    engine = ros.start("engine_node", *parameters)
    ros.wait(lambda: len(chunks) > 3, "chunks")
    epoch = chunks[-1].epoch
    workers = [
        child
        for child in psutil.Process(engine.pid).children(recursive=True)
        if "worker" in " ".join(child.cmdline())
    ]
    assert workers
    os.kill(workers[0].pid, signal.SIGKILL)
    ros.wait(lambda: engine.poll() is not None, "the engine to end")
    assert engine.returncode == 1
    (line,) = [line for line in ros.log(engine).splitlines() if "FATAL" in line]
    assert "is lost" in line
    gone = psutil.wait_procs(workers, timeout=20.0)[1]
    assert not gone, "workers were left behind"
    chunks.clear()
    ros.start("engine_node", *parameters)
    ros.wait(lambda: chunks and chunks[-1].epoch > epoch, "chunks of the successor")


def test_an_engine_that_fails_by_itself_ends_its_node_with_a_fault(ros: Any, small: Path) -> None:
    chunks = ros.listen(ACTION_CHUNK)
    Robot(ros)
    given = [word for p in (f"model:={small}", *QUICK) for word in ("-p", p)]
    faulty = Path(__file__).with_name("faulty_engine_node.py")
    engine = ros.start_file(faulty, "fails", "--ros-args", *given)
    ros.wait(lambda: len(chunks) == 3, "chunks")
    ros.wait(lambda: engine.poll() is not None, "the engine to end")
    assert engine.returncode == 1
    (line,) = [line for line in ros.log(engine).splitlines() if "FATAL" in line]
    assert "the engine failed: ArithmeticError: a fault in the engine's thread" in line


def test_an_engine_whose_loop_stands_still_is_not_alive_though_its_node_is(
    ros: Any, small: Path
) -> None:
    """The executor's timers go on, and renew nothing."""
    heard: list[Any] = []
    chunks: list[Any] = []
    topic = action_chunk(lease_s=0.5)
    ros.node.create_subscription(
        topic.type,
        topic.name,
        chunks.append,
        topic.qos,
        event_callbacks=SubscriptionEventCallbacks(liveliness=heard.append),
    )
    Robot(ros)
    parameters = (f"model:={small}", *QUICK, "lease_s:=0.5")
    given = [word for parameter in parameters for word in ("-p", parameter)]
    faulty = Path(__file__).with_name("faulty_engine_node.py")
    engine = ros.start_file(faulty, "stands_still", "--ros-args", *given)
    ros.wait(lambda: len(chunks) == 3, "chunks")
    ros.wait(lambda: heard and heard[-1].alive_count == 0, "an engine that is not alive")
    assert engine.poll() is None


def test_with_recovery_a_killed_worker_costs_an_epoch_and_not_the_engine(
    ros: Any, small: Path
) -> None:
    chunks = ros.listen(ACTION_CHUNK)
    Robot(ros)
    parameters = ("workers:=2", "devices:=2", "recovery:=rebuild")
    engine = ros.start("engine_node", f"model:={small}", *parameters)
    ros.wait(lambda: len(chunks) > 3, "chunks")
    epoch = chunks[-1].epoch
    victim = next(
        child
        for child in psutil.Process(engine.pid).children(recursive=True)
        if "worker" in " ".join(child.cmdline())
    )
    victim.send_signal(signal.SIGKILL)
    ros.wait(lambda: chunks[-1].epoch > epoch, "a chunk of the next epoch")
    assert chunks[-1].epoch == epoch + 1
    count = len(chunks)
    ros.wait(lambda: len(chunks) > count + 3, "chunks after it")
    assert engine.poll() is None
    log = ros.log(engine)
    assert "is lost" in log
    assert "goes on by rebuild" in log


def test_ctrl_c_while_the_workers_start_ends_all_of_them_in_order(ros: Any, small: Path) -> None:
    engine = ros.start("engine_node", f"model:={small}", "workers:=2", "devices:=2")

    def workers() -> list[psutil.Process]:
        family = psutil.Process(engine.pid).children(recursive=True)
        return [child for child in family if "worker" in " ".join(child.cmdline())]

    ros.wait(lambda: len(workers()) == 2, "both workers to be started")
    started = workers()
    for worker in started:
        # A terminal sends it to the whole group; a worker leaves the end to the front.
        worker.send_signal(signal.SIGINT)
    assert ros.stop(engine) == 0
    gone = psutil.wait_procs(started, timeout=20.0)[1]
    assert not gone, "workers were left behind"
    log = ros.log(engine)
    assert "Traceback" not in log
    assert "the start was given up" in log


def test_a_stream_that_opens_slowly_holds_up_nothing(ros: Any, small: Path) -> None:
    chunks = ros.listen(ACTION_CHUNK)
    Robot(ros)
    # The silence of the suspended worker is no loss here.
    engine = ros.start(
        "engine_node", f"model:={small}", "workers:=1", "devices:=1", "silence_s:=120.0"
    )
    ros.wait(lambda: chunks, "chunks")
    (worker,) = [
        child
        for child in psutil.Process(engine.pid).children(recursive=True)
        if "worker" in " ".join(child.cmdline())
    ]
    ros.wait_for_diagnosis("engine_node: engine", "running")
    said = ros.heard[DIAGNOSTICS.name]
    worker.suspend()
    said.clear()
    opened = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right"))
    during = len(said)
    worker.resume()
    assert not opened.admitted
    assert "did not answer" in opened.reason
    assert during >= 2
    chunks.clear()
    ros.wait(lambda: chunks, "chunks again")
    again = ros.call(OPEN_STREAM, OpenStream.Request(stream_id="right"))
    assert again.admitted, again.reason


def test_a_clock_that_jumps_back_raises_the_epoch_and_a_paused_one_stalls_nothing(
    ros: Any, small: Path
) -> None:
    chunks = ros.listen(ACTION_CHUNK)
    robot = Robot(ros)
    robot.sim_ns = 500 * 10**9
    clock = ros.publisher(Topic(name="/clock", type=Clock, qos=sensor_data(1)))

    def tick(step_ns: int = 20_000_000) -> None:
        if not paused:
            robot.sim_ns += step_ns
        clock.publish(Clock(clock=ns_to_time(robot.sim_ns)))

    paused = False
    ros.every(0.02, tick)
    ros.start("engine_node", f"model:={small}", *QUICK, "use_sim_time:=true")
    ros.wait(lambda: len(chunks) > 5, "chunks in simulated time")
    assert abs(time_to_ns(chunks[-1].header.stamp) - robot.sim_ns) < 5 * 10**9
    epoch = chunks[-1].epoch
    robot.sim_ns = 100 * 10**9
    ros.wait(lambda: chunks[-1].epoch > epoch, "a higher epoch after the jump")
    assert chunks[-1].epoch == epoch + 1
    assert abs(time_to_ns(chunks[-1].header.stamp) - robot.sim_ns) < 5 * 10**9
    paused = True
    ros.wait_for_diagnosis("engine_node: engine", "running")
    heard = ros.heard[DIAGNOSTICS.name]
    heard.clear()
    ros.wait(lambda: len(heard) >= 3, "diagnostics while /clock stands still")


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("model:=/nowhere.safetensors", "model: '/nowhere.safetensors'"),
        ("model:=''", "model: '': name a file"),
        ("model:=physis_tiny_world", "'physis_tiny_world': is a world model: it gives no actions"),
        ("robot_file:=panda", "joint_names: 'shoulder_pan_joint, shoulder_lift_joint, "),
        ("model:=synthetic", "'synthetic': is a model for the engine alone"),
        ("partition:=diagonal", "partition: 'diagonal': must be one of"),
        ("perod_s:=0.1", "did you mean 'period_s'?"),
        ("stream_ids:=[a,b]", "stream_namespaces"),
    ],
)
def test_bad_parameters_get_one_line_and_exit_code_2(ros: Any, parameter: str, said: str) -> None:
    given = [] if parameter.startswith("model") else ["model:=physis_tiny_follow"]
    engine = ros.start("engine_node", *given, parameter)
    ros.wait(lambda: engine.poll() is not None, "the engine to end")
    assert engine.returncode == 2
    lines = [line for line in ros.log(engine).splitlines() if line.strip()]
    assert len(lines) == 1, lines
    assert said in lines[0]


def test_a_file_that_is_no_model_is_refused(ros: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.safetensors"
    wrong.write_bytes(b"not a model at all")
    engine = ros.start("engine_node", f"model:={wrong}")
    ros.wait(lambda: engine.poll() is not None, "the engine to end")
    assert engine.returncode == 2
    assert "no family knows it" in ros.log(engine)
