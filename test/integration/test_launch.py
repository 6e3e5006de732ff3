"""The launch files under the stock launch system; skipped where that is not installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

WHY = "it is not on PyPI: it comes with a ROS distribution"
pytest.importorskip("launch_ros", reason=f"launch_ros: {WHY}")
launch = pytest.importorskip("launch", reason=f"launch: {WHY}")
launch_pytest = pytest.importorskip("launch_pytest", reason=f"launch_pytest: {WHY}")

from launch.actions import IncludeLaunchDescription  # noqa: E402
from launch.launch_description_sources import PythonLaunchDescriptionSource  # noqa: E402

from physis_ros.node.interfaces import (  # noqa: E402
    ACTION_CHUNK,
    JOINT_STATES,
    SAFETY_STATUS,
    STREAM_STATUS,
    in_namespace,
)

pytestmark = pytest.mark.integration
LAUNCH = Path(__file__).parents[2] / "launch"


def include(name: str, **arguments: str) -> Any:
    source = PythonLaunchDescriptionSource(str(LAUNCH / f"{name}.launch.py"))
    return IncludeLaunchDescription(source, launch_arguments=arguments.items())


def description(*actions: Any) -> Any:
    return launch.LaunchDescription([*actions, launch_pytest.actions.ReadyToTest()])


@pytest.fixture
def quiet_domain(ros: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The launched processes join the domain in which the test listens, and no other."""
    monkeypatch.setenv("ROS_DOMAIN_ID", str(ros.domain))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return int(os.environ["ROS_DOMAIN_ID"])


@launch_pytest.fixture
def wam(quiet_domain: int) -> Any:
    return description(include("wam", namespace="left", engine="none"))


@pytest.mark.launch(fixture=wam)
def test_wam_runs_in_a_namespace(wam: Any, ros: Any) -> None:
    topics = [in_namespace(t, "left") for t in (JOINT_STATES, SAFETY_STATUS, STREAM_STATUS)]
    heard = [ros.listen(topic) for topic in topics]
    ros.wait(lambda: all(heard), "the stack in /left", 120.0)
    names = ros.node.get_node_names_and_namespaces()
    assert ("engine_node", "/left") not in names
    assert ("safety_node", "/left") in names


@launch_pytest.fixture
def two_robots(quiet_domain: int) -> Any:
    return description(include("robot", namespace="left"), include("robot", namespace="right"))


@pytest.mark.launch(fixture=two_robots)
def test_two_robots_do_not_hear_each_other(two_robots: Any, ros: Any) -> None:
    heard = [ros.listen(in_namespace(JOINT_STATES, side)) for side in ("left", "right")]
    ros.wait(lambda: all(heard), "both robots", 120.0)
    for side in ("left", "right"):
        assert ros.node.count_publishers(f"/{side}/joint_states") == 1


@launch_pytest.fixture
def two_served_robots(quiet_domain: int) -> Any:
    return description(include("two_robots"))


@pytest.mark.launch(fixture=two_served_robots)
def test_two_robots_are_served_by_one_engine(two_served_robots: Any, ros: Any) -> None:
    heard = [ros.listen(in_namespace(ACTION_CHUNK, side)) for side in ("left", "right")]
    ros.wait(lambda: all(heard), "chunks for both robots", 120.0)
    assert [{chunk.stream_id for chunk in chunks} for chunks in heard] == [{"left"}, {"right"}]
    names = ros.node.get_node_names_and_namespaces()
    assert [place for name, place in names if name == "engine_node"] == ["/"]


@pytest.mark.launch(fixture=two_served_robots)
def test_a_robot_without_its_safety_node_ends_alone(two_served_robots: Any, ros: Any) -> None:
    heard = {side: ros.listen(in_namespace(SAFETY_STATUS, side)) for side in ("left", "right")}
    chunks = ros.listen(in_namespace(ACTION_CHUNK, "right"))
    ros.wait(lambda: all(heard.values()) and chunks, "both robots", 120.0)
    node_of("safety_node", "left").kill()
    _, alive = psutil.wait_procs([node_of("buffer_node", "left")], timeout=60.0)
    assert not alive
    chunks.clear()
    heard["right"].clear()
    ros.wait(lambda: chunks and heard["right"], "the right robot to go on", 120.0)
    # What stands for the robot goes on; the buffer is not started again.
    assert node_of("robot_sim_node", "left").is_running()
    assert not find("buffer_node", "left")


def find(name: str, namespace: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            words = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        if any(word.endswith(f"/{name}") for word in words) and f"__ns:=/{namespace}" in words:
            found.append(child)
    return found


def node_of(name: str, namespace: str) -> psutil.Process:
    (process,) = find(name, namespace)
    return process


@launch_pytest.fixture
def engine(quiet_domain: int) -> Any:
    return description(include("engine"))


@pytest.mark.launch(fixture=engine)
def test_the_engine_runs_alone(engine: Any, ros: Any) -> None:
    ros.wait(lambda: "engine_node" in ros.node.get_node_names(), "the engine", 120.0)
    assert sorted(ros.node.get_node_names()) == ["bench", "engine_node"]
