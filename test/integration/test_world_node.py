"""The world node as a process: frames come and say what they depict; lockstep, reset, two worlds.

The world model has random weights and draws noise; what is tested is everything around it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PATIENCE_S, ROOT, RosBench
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from physis_core.model.tiny import checkpoint
from physis_core.model.tiny.config import WorldConfig
from physis_core.model.tiny.loading import random_world
from physis_ros.node.image_messages import image_to_rgb, rgb_to_compressed, rgb_to_image
from physis_ros.node.interfaces import (
    JOINT_TRAJECTORY,
    WORLD_CAMERA_INFO,
    WORLD_COMMAND,
    WORLD_FRAME,
    WORLD_FRAME_COMPRESSED,
    WORLD_PROMPT,
    WORLD_RESET,
    WORLD_STEP,
    in_namespace,
)
from physis_ros.node.time_messages import ns_to_time, time_to_ns
from physis_ros.srv import ResetWorld, StepWorld

pytestmark = pytest.mark.integration

JOINTS = ("a", "b")
HEIGHT, WIDTH = 32, 64
FRAMES = 3
STEP_NS = 100_000_000
START_NS = 5_000_000_000


def world_file(folder: Path) -> Path:
    config = WorldConfig(
        joint_names=JOINTS,
        position_mean=(0.0, 0.0),
        position_std=(1.0, 1.0),
        camera_fovy_deg=90.0,
        frame_size=(HEIGHT, WIDTH),
        cell_channels=2,
        autoencoder_width=4,
        frames=FRAMES,
        step_s=0.1,
        steps=2,
        blocks=2,
        dim=16,
        heads=2,
        ffn=24,
        window_chunks=3,
    )
    path = folder / "world.safetensors"
    model = random_world(config, seed=1)
    # A network as it is made gives nearly one frame for everything.
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.mul_(1.5)
    checkpoint.save(path, config, model.network.state_dict(), {})
    return path


def first_frame(value: int = 90, *, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Image:
    rgb = np.full((*size, 3), value, dtype=np.uint8)
    return rgb_to_image(rgb, stamp=ns_to_time(START_NS), frame_id="camera")


def reset(ros: RosBench, stream_id: str, **changes: Any) -> Any:
    fields = {
        "stream_id": stream_id,
        "first_frame": first_frame(),
        "joint_names": list(JOINTS),
        "positions": [0.1, 0.2],
        **changes,
    }
    return ros.call(WORLD_RESET, ResetWorld.Request(**fields))


def step(ros: RosBench, stream_id: str, positions: np.ndarray, names: Any = JOINTS) -> Any:
    request = StepWorld.Request(
        stream_id=stream_id, joint_names=list(names), positions=positions.reshape(-1).tolist()
    )
    return ros.call(WORLD_STEP, request)


def stamps(images: Any) -> list[int]:
    return [time_to_ns(image.header.stamp) for image in images]


def pixels(images: Any) -> np.ndarray:
    return np.stack([image_to_rgb(image, field="frame") for image in images])


def test_lockstep_steps_once_per_call_and_reset_begins_anew(ros: RosBench, tmp_path: Path) -> None:
    ros.start(
        "world_node",
        f"model:={world_file(tmp_path)}",
        "mode:=lockstep",
        "stream_ids:=[left, right]",
        "stream_namespaces:=[left, right]",
        "workers:=1",
    )
    frames = ros.listen(in_namespace(WORLD_FRAME, "left"))
    infos = ros.listen(in_namespace(WORLD_CAMERA_INFO, "left"))
    packed = ros.listen(in_namespace(WORLD_FRAME_COMPRESSED, "left"))
    others = ros.listen(in_namespace(WORLD_FRAME, "right"))
    moves = np.linspace(0.0, 0.5, 2 * FRAMES).reshape(FRAMES, 2)

    early = step(ros, "left", moves)
    assert not early.success
    assert "world/reset" in early.reason

    began = reset(ros, "left")
    assert began.success, began.reason
    first = step(ros, "left", moves)
    assert first.success, first.reason
    # The first frame depicts START_NS; what is stepped comes after it.
    wanted = [START_NS + (k + 1) * STEP_NS for k in range(FRAMES)]
    assert stamps(first.frames) == wanted
    assert pixels(first.frames).shape == (FRAMES, HEIGHT, WIDTH, 3)
    second = step(ros, "left", moves)
    assert stamps(second.frames) == [ns + FRAMES * STEP_NS for ns in wanted]
    assert second.chunk_id == first.chunk_id + 1
    # The topic carries the same frames, once each, with the same stamps.
    ros.wait(lambda: len(frames) >= 2 * FRAMES, "the frames on the topic")
    assert stamps(frames) == stamps([*first.frames, *second.frames])
    np.testing.assert_array_equal(pixels(frames), pixels([*first.frames, *second.frames]))
    ros.wait(lambda: len(infos) >= 2 * FRAMES and len(packed) >= 2 * FRAMES, "the rest")
    assert stamps(infos) == stamps(frames) == stamps(packed)
    info: CameraInfo = infos[0]
    assert (info.width, info.height) == (WIDTH, HEIGHT)
    assert info.k[0] == pytest.approx(0.5 * HEIGHT)
    small: CompressedImage = packed[0]
    same = rgb_to_compressed(pixels(frames[:1])[0], stamp=frames[0].header.stamp, frame_id="")
    assert small.data == same.data

    # The same beginning and the same seed give the same world, in a new epoch; the other one moves
    # only when it is told to.
    assert not others
    again = reset(ros, "left")
    assert again.success
    assert again.epoch > began.epoch
    assert reset(ros, "right").success
    twin = step(ros, "right", moves)
    repeated = step(ros, "left", moves)
    assert stamps(repeated.frames) == stamps(twin.frames) == wanted
    np.testing.assert_array_equal(pixels(twin.frames), pixels(first.frames))
    elsewhere = step(ros, "right", moves + 2.0)
    assert (pixels(elsewhere.frames) != pixels(second.frames)).any()

    # What does not fit is answered with one line, and the world stands where it stood.
    for answer, word in (
        (reset(ros, "left", first_frame=first_frame(size=(HEIGHT, HEIGHT))), "first_frame.size"),
        (reset(ros, "left", joint_names=["a", "c"]), "'b' is missing"),
        (reset(ros, "left", positions=[0.1, float("nan")]), "must be finite"),
        (reset(ros, "middle"), "no such world"),
        (step(ros, "left", moves[:2]), "positions"),
        (step(ros, "left", moves, names=("a", "a")), "named twice"),
    ):
        assert not answer.success
        assert word in answer.reason
        assert "\n" not in answer.reason
    last = step(ros, "left", moves)
    assert stamps(last.frames) == [ns + FRAMES * STEP_NS for ns in wanted]


def test_a_free_world_follows_ros_time_and_trajectories(ros: RosBench, tmp_path: Path) -> None:
    process = ros.start(
        "world_node", f"model:={world_file(tmp_path)}", "workers:=0", "frame_hz:=10.0"
    )
    frames: list[Image] = ros.listen(WORLD_FRAME)
    commands = ros.publisher(WORLD_COMMAND)
    ros.wait_for_diagnosis("world world", "waits for world/reset")
    assert not frames
    began_ns = time.time_ns()
    assert reset(ros, "world").success
    ros.wait(lambda: len(frames) >= 12, "frames")
    depicted = np.array(stamps(frames[:12]))
    # Stamps follow ROS time from the reset on, a step apart unless the machine was late.
    assert depicted[0] >= began_ns
    assert (np.diff(depicted) > 0).all()
    assert (np.diff(depicted) % STEP_NS < 1000).all()
    assert depicted[-1] < time.time_ns() + FRAMES * STEP_NS

    message = JointTrajectory(
        joint_names=["b", "a"], points=[JointTrajectoryPoint(positions=[3.0, -3.0])]
    )
    message.points[0].time_from_start.nanosec = 200_000_000
    before = pixels(frames[-6:]).astype(float).mean(axis=0)
    ros.wait(lambda: commands.get_subscription_count() > 0, "the world's subscription")
    commands.publish(message)
    sent_ns = time.time_ns()
    ros.wait(lambda: time_to_ns(frames[-1].header.stamp) > sent_ns + 10 * STEP_NS, "frames")
    after = pixels(frames[-6:]).astype(float).mean(axis=0)
    assert np.abs(after - before).mean() > 1.0

    # A command that does not fit is said in one line, and frames go on as they were.
    message.points[0].velocities = [0.0, float("nan")]
    commands.publish(message)
    ros.wait_for_diagnosis("world world", "command: point 0: velocities[a]: nan")
    message.points[0].velocities = []
    message.joint_names = ["b", "c"]
    commands.publish(message)
    ros.wait_for_diagnosis("world world", "joint 'c'")
    kept_ns = time_to_ns(frames[-1].header.stamp)
    # With a state that is not finite, no chunk could be made any more.
    ros.wait(lambda: time_to_ns(frames[-1].header.stamp) > kept_ns + 6 * STEP_NS, "frames")
    # The topic of a robot's controller moves no world.
    names = dict(ros.node.get_topic_names_and_types())
    assert JOINT_TRAJECTORY.name not in {name.strip("/") for name in names}
    count = len(frames)
    refused = step(ros, "world", np.zeros((FRAMES, 2)))
    assert "lockstep" in refused.reason
    ros.wait(lambda: len(frames) >= count + 3, "frames after a wrong trajectory")
    assert ros.stop(process) == 0


def test_a_downloaded_folder_gives_frames_from_a_prompt_and_a_first_frame(
    ros: RosBench, tmp_path: Path
) -> None:
    """diffusers' layout, as it is downloaded; a wrong prompt or frame changes nothing."""
    pytest.importorskip("diffusers", reason="the extra `models` is not installed")
    from wan_folder import make_pipeline

    from physis_core.model.wan.decoder import load_decoder, load_encoder
    from physis_core.model.wan.folder import read_folder

    folder = make_pipeline(tmp_path / "wan", first_frame=True)
    process = ros.start("world_node", f"model:={folder}", "prompt:=a red cup", "workers:=1")
    frames = ros.listen(WORLD_FRAME)
    # It needs no first frame, so it begins by itself.
    ros.wait(lambda: len(frames) >= 8, "frames")
    assert pixels(frames).shape[1:] == (32, 32, 3)
    infos = ros.listen(WORLD_CAMERA_INFO)
    ros.wait(lambda: infos, "camera_info")
    assert infos[0].k[0] == 0.0  # Nothing is known of the camera.

    prompts = ros.publisher(WORLD_PROMPT)
    ros.wait(lambda: prompts.get_subscription_count() > 0, "the world's subscription")
    prompts.publish(String(data="cup " * 25_000))
    ros.wait_for_diagnosis("world world", "has 100000 bytes")
    other = reset(ros, "world", joint_names=[], positions=[], first_frame=first_frame())
    assert other.reason == "first_frame.size: '64x32': the model takes 32x32 pixels"
    count = len(frames)
    ros.wait(lambda: len(frames) >= count + 8, "frames after what was refused")

    rgb = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    image = rgb_to_image(rgb, stamp=ns_to_time(START_NS), frame_id="camera")
    began = reset(ros, "world", joint_names=[], positions=[], first_frame=image)
    assert began.success, began.reason
    parts = read_folder(folder)
    with torch.inference_mode():
        latent = load_encoder(parts).encode(torch.from_numpy(rgb)[None])
        decoder = load_decoder(parts, torch.device("cpu"))
        wanted = decoder.decode(latent[:, None], decoder.new_cache())[0].numpy()

    def shown() -> bool:
        return any(np.array_equal(frame, wanted) for frame in pixels(frames[-40:]))

    ros.wait(shown, "the first frame")
    assert ros.stop(process) == 0


@pytest.mark.parametrize(
    ("parameter", "word"),
    [
        ("model:=physis_tiny_follow", "is a policy"),
        ("model:=nowhere", "no such file"),
        ("prompt:=cup", "takes none"),
        ("frame_hz:=25.0", "frame_hz"),
        ("robot_file:=panda", "the robot panda has panda_joint1"),
        ("mode:=sideways", "mode"),
        ("stream_ids:=[one, two]", "stream_namespaces"),
    ],
)
def test_what_does_not_fit_ends_with_one_line(
    ros: RosBench, tmp_path: Path, parameter: str, word: str
) -> None:
    given = [] if parameter.startswith("model") else [f"model:={world_file(tmp_path)}"]
    process = ros.start("world_node", *given, parameter)
    assert process.wait(timeout=120.0) == 2
    said = ros.log(process)
    assert word in said
    assert "Traceback" not in said


@pytest.mark.parametrize("mode", ["free", "lockstep"])
def test_the_example_loop_runs_beside_a_simulator(ros: RosBench, mode: str) -> None:
    """With the checkpoint and the parameter file that go with us."""
    # Behind the file, or the file's own mode would win.
    given = ("--params-file", str(ROOT / "config" / "world_node.param.yaml"))
    ros.start("world_node", arguments=(*given, "-p", f"mode:={mode}"))
    ros.start("robot_sim_node", "realtime_priority:=0", "camera_hz:=10.0")
    words = ["--seconds", "3", *(["--lockstep"] if mode == "lockstep" else [])]
    example = ros.start_file(ROOT / "docs" / "examples" / "acwm_loop.py", *words)
    assert example.wait(timeout=PATIENCE_S) == 0, ros.log(example)
    frames = int(ros.log(example).split(" frames")[0].split()[-1])
    # In lockstep every frame comes; a free world may skip on a busy machine, and says so.
    assert frames == 90 if mode == "lockstep" else frames >= 3
