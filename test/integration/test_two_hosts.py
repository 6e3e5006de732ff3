"""The robot's side and the engine as two hosts would run them: two `physis up` of one domain."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arm_stack import ENGINE, LATE_S, ArmStack
from clock_source import BEGIN_S
from restless_model import restless_model
from stack_up import Up

from physis_ros.msg import StreamStatus

pytestmark = [pytest.mark.integration, pytest.mark.timed]
FEW_TICKS_S = 0.05
SKEW_S = 0.5


class Hosts:
    """A robot host that runs all the time, and an engine host that may go and come.

    `engine_settings`: what is set of its node besides what every test needs."""

    def __init__(self, ros: Any, folder: Path, model: Path, *engine_settings: str) -> None:
        self._ros, self._folder, self._model = ros, folder, model
        self._engine_settings = engine_settings
        self.robot = self._up("robot", *self._robot_settings())
        self.engine = self.start_engine()
        self.arm = ArmStack(ros, model, folder)

    def start_engine(self) -> Up:
        settings = [f"model={self._model}", *(word.replace(":=", "=") for word in ENGINE)]
        settings += self._engine_settings
        self.engine = self._up("engine", *(f"engine_node.{one}" for one in settings))
        return self.engine

    def close(self) -> None:
        self.engine.close()
        self.robot.close()

    def _robot_settings(self) -> tuple[str, ...]:
        return (
            f"observation_node.model={self._model}",
            f"robot_sim_node.record_path={self._folder}",
            "robot_sim_node.width=64",
            "robot_sim_node.height=64",
            "robot_sim_node.camera_hz=20.0",
        )

    def _up(self, stack: str, *settings: str) -> Up:
        folder = self._folder / stack
        folder.mkdir(exist_ok=True)
        words = [word for one in settings for word in ("--set", one)]
        return Up(self._ros.domain, folder, stack, *words)


@pytest.fixture
def hosts(ros: Any, tmp_path: Path) -> Iterator[Hosts]:
    running = Hosts(ros, tmp_path, restless_model(tmp_path / "model.safetensors"))
    try:
        yield running
    finally:
        running.close()


def test_the_engine_host_goes_and_comes_and_the_robot_host_stays(hosts: Hosts) -> None:
    arm = hosts.arm
    arm.wait_moving()
    epoch = arm.chunks[-1].epoch
    assert hosts.robot.node("engine_node") is None
    assert hosts.engine.node("safety_node") is None
    fault_s = arm.now_s()
    # As if the host were gone: everything of it at once.
    assert hosts.engine.node("engine_node") is not None
    hosts.engine.close()
    hosts.engine.assert_nothing_is_left()
    rest = arm.wait_rest(fault_s)
    arm.wait_held()
    arm.wait_stream(StreamStatus.UNDERRUN, "no chunk for")
    assert rest.at_s <= arm.chunks_end_s() + LATE_S + FEW_TICKS_S + rest.braking_s
    assert hosts.robot.process.poll() is None
    hosts.start_engine()
    arm.wait_moving()
    assert arm.chunks[-1].epoch > epoch
    arm.assert_no_limit_passed()
    for host in (hosts.engine, hosts.robot):
        host.process.send_signal(signal.SIGINT)
        assert host.wait() == 0, host.text()


def test_two_hosts_whose_clocks_disagree_are_told_so_and_the_arm_goes_on(
    ros: Any, tmp_path: Path
) -> None:
    """The engine's host has a clock of its own: half a second fast, then half a second slow."""
    clock = ros.start_file(Path(__file__).with_name("clock_source.py"), talks=True)

    def tell(line: str) -> None:
        clock.stdin.write(f"{line}\n".encode())
        clock.stdin.flush()
        ros.wait(lambda: line in ros.log(clock), "the engine host's clock")

    tell("resume")
    # It has run for a moment when the jump reaches it, which is little beside half a second.
    tell(f"jump {time.time() + SKEW_S - BEGIN_S:.3f}")
    hosts = Hosts(
        ros, tmp_path, restless_model(tmp_path / "model.safetensors"), "use_sim_time=true"
    )
    try:
        arm = hosts.arm
        for way, shift_s in (("ahead of", 0.0), ("behind", -2.0 * SKEW_S)):
            if shift_s:
                tell(f"jump {shift_s:.3f}")
            ros.wait_for_diagnosis(
                "buffer_node: stream", f"the engine's clock is {way} this host's by at least 0."
            )
            arm.wait_moving()
            ros.wait(lambda: arm.stream and arm.stream[-1].clock_suspect, "a suspect clock")
            # What stands on one clock alone is right: from the sensor to the robot.
            assert 0.0 < arm.stream[-1].action_age_handoff_ms.p50 < 1e3 * SKEW_S
        arm.assert_no_limit_passed()
    finally:
        hosts.close()


def test_a_whole_stack_with_its_engine_elsewhere_starts_none(ros: Any, tmp_path: Path) -> None:
    """`--engine remote` is the robot host's half of a stack that has an engine."""
    up = Up(ros.domain, tmp_path, "wam", "--engine", "remote", "--duration-s", "0.1")
    assert up.wait() == 0, up.text()
    assert up.outcome()["nodes"] == [
        "safety_node",
        "robot_sim_node",
        "observation_node",
        "buffer_node",
    ]
