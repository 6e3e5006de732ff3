"""A bad way from engine to buffer: chunks lost, swapped, all lost, or a thousand at once.

One running robot serves all trials; between its engine and its buffer stands a relay, a process of
its own, that each trial starts anew with other faults. The arm's own record is the judge.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from arm_stack import LATE_S, ArmStack
from chunk_relay import RELAYED
from restless_model import restless_model

from physis_ros.msg import StreamStatus
from physis_ros.node.interfaces import ACTION_CHUNK, SAFETY_COMMAND_IN

pytestmark = [pytest.mark.integration, pytest.mark.timed]
FEW_TICKS_S = 0.05
BURST = 1000
MEBIBYTE = 1 << 20


class RelayedArm:
    """The robot, and the relay of the moment."""

    def __init__(self, ros: Any, folder: Path) -> None:
        self.ros = ros
        self.arm = ArmStack(
            ros,
            restless_model(folder / "model.safetensors"),
            folder,
            arguments={"buffer_node": ("-r", f"action_chunk:={RELAYED}")},
            chunk_topic=replace(ACTION_CHUNK, name=RELAYED),
        ).start()
        self._relay: Any = None
        self._relays = 0

    def wait_through(self) -> None:
        """Until a chunk has come through this relay, of an epoch of its own."""
        before = len(self.arm.chunks)
        epochs = {chunk.epoch for chunk in self.arm.chunks}
        self.ros.wait(
            lambda: any(chunk.epoch not in epochs for chunk in self.arm.chunks[before:]),
            "a chunk through the relay",
        )

    def burst(self) -> None:
        self._relay.send_signal(signal.SIGUSR1)

    def relay(self, *words: str) -> None:
        """Put a relay with these faults in the place of the last one."""
        if self._relay is not None:
            self._relay.kill()
            self._relay.wait()
        self._relays += 1
        self._relay = self.ros.start_file(
            Path(__file__).with_name("chunk_relay.py"), "--epoch", str(self._relays), *words
        )


@pytest.fixture(scope="module")
def running(shared_ros: Any, tmp_path_factory: pytest.TempPathFactory) -> RelayedArm:
    robot = RelayedArm(shared_ros, tmp_path_factory.mktemp("arm"))
    robot.relay()
    return robot


@pytest.fixture
def relayed(running: RelayedArm) -> Iterator[RelayedArm]:
    running.arm.wait_moving()
    yield running
    running.relay()
    running.wait_through()
    running.arm.wait_moving()
    running.arm.assert_no_limit_passed()


def test_lost_and_swapped_chunks_are_counted_and_the_arm_goes_on(relayed: RelayedArm) -> None:
    arm = relayed.arm
    arm.ros.wait(lambda: arm.stream, "a status")
    before = arm.stream[-1]
    relayed.relay("--seed", "7", "--lose", "0.25", "--swap", "0.25")
    arm.ros.wait(
        lambda: (
            arm.stream
            and arm.stream[-1].gaps >= before.gaps + 5
            and arm.stream[-1].dropped > before.dropped
            and "a newer one came before" in arm.ros.log(arm.processes["buffer_node"])
        ),
        "gaps, and a chunk refused because it came behind a newer one",
    )
    # In spite of them, for they go on.
    arm.wait_moving()


def test_a_way_that_loses_everything_ends_in_rest(relayed: RelayedArm) -> None:
    arm = relayed.arm
    fault_s = arm.now_s()
    relayed.relay("--lose", "1.0")
    rest = arm.wait_rest(fault_s)
    arm.wait_held()
    arm.wait_stream(StreamStatus.UNDERRUN, "no chunk for")
    assert rest.at_s <= arm.chunks_end_s() + LATE_S + FEW_TICKS_S + rest.braking_s


def test_a_burst_of_a_thousand_chunks(relayed: RelayedArm) -> None:
    arm = relayed.arm
    relayed.relay("--burst", str(BURST))
    relayed.wait_through()
    arm.wait_moving()
    arm.ros.wait(lambda: arm.stream, "a status")
    before = arm.stream[-1]
    buffer = psutil.Process(arm.processes["buffer_node"].pid)
    memory = buffer.memory_info().rss
    windows = arm.ros.listen(SAFETY_COMMAND_IN)
    windows.clear()
    relayed.burst()

    def accounted() -> int:
        now = arm.stream[-1]
        return sum(getattr(now, n) - getattr(before, n) for n in ("chunks", "dropped", "gaps"))

    # Each of them was played, refused, or is known not to have come.
    arm.ros.wait(lambda: accounted() >= BURST, "every chunk of the burst to be accounted for")
    # The newest counts: a burst does not become a burst of commands.
    assert len(windows) < BURST // 4
    assert buffer.memory_info().rss - memory < 64 * MEBIBYTE
