"""Between the start and the first motion, `physis up` says what is waited for."""

from __future__ import annotations

from physis_ros.cli.up_progress import StartProgress
from physis_ros.stack.supervisor import Event


def line(process: str, text: str) -> Event:
    return Event(kind="line", process=process, text=f"[INFO] [1.0] [{process}]: {text}")


def test_the_start_and_the_first_trajectory_are_waited_for_aloud() -> None:
    progress = StartProgress(["safety_node", "engine_node"], after_s=5.0)
    assert progress.look(0.0) == ""
    progress.take(line("safety_node", "active"))
    assert progress.look(4.9) == ""
    assert progress.look(5.0) == "waits for 5 s: engine_node to become active"
    assert progress.look(6.0) == ""
    progress.take(line("engine_node", "active"))
    assert progress.look(12.0) == "all nodes are active after 12.0 s"
    assert progress.look(12.2) == ""
    progress.take(
        line("engine_node", "waits for 4 s: arm: an observation; nobody publishes /observation")
    )
    assert progress.look(17.2) == (
        "waits for 5 s: the first trajectory of safety_node "
        "(engine_node waits for 4 s: arm: an observation; nobody publishes /observation)"
    )
    progress.take(line("safety_node", "first trajectory forwarded"))
    assert progress.look(60.0) == ""


def test_a_stack_without_a_robot_waits_for_no_trajectory() -> None:
    progress = StartProgress(["engine_node"])
    progress.take(line("engine_node", "active"))
    assert progress.look(0.0) == "all nodes are active after 0.0 s"
    assert progress.look(100.0) == ""


def test_each_of_two_robots_is_waited_for() -> None:
    progress = StartProgress(["left/safety_node", "right/safety_node"], after_s=1.0)
    for name in ("left/safety_node", "right/safety_node"):
        progress.take(line(name, "active"))
    progress.look(0.0)
    progress.take(line("left/safety_node", "first trajectory forwarded"))
    assert progress.look(1.0) == ""
    assert progress.look(2.5) == "waits for 2 s: the first trajectory of right/safety_node"
