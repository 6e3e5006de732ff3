"""Two that command one controller, and two that say one joint, are named."""

from __future__ import annotations

from typing import Any

from physis_ros.cli.doctor_graph import judged

CONTROLLER = "/joint_trajectory_controller/joint_trajectory"


def seen(
    commands: dict[str, list[str]] | None = None,
    joints: dict[str, dict[str, dict[str, float]]] | None = None,
) -> dict[str, Any]:
    return {"commands": commands or {}, "joints": joints or {}}


def test_a_machine_without_a_robot_and_a_robot_as_it_should_be() -> None:
    assert judged(seen()).detail == "none runs here"
    found = judged(
        seen(
            {CONTROLLER: ["/safety_node"]},
            {"/joint_states": {"/arm": {"a": 1.0}, "/gripper": {"finger": 0.0}}},
        )
    )
    assert found.ok
    assert "each with one publisher" in found.detail


def test_a_second_commander_is_named_and_fails_the_doctor() -> None:
    found = judged(seen({CONTROLLER: ["/acwm_loop", "/safety_node"]}))
    assert (found.ok, found.required) == (False, True)
    assert found.detail == f"{CONTROLLER} has 2 publishers: /acwm_loop, /safety_node"


def test_two_that_say_one_joint_are_named_and_fail_it_where_they_disagree() -> None:
    def both(position: float) -> dict[str, Any]:
        said = {"/robot": {"a": 1.571, "b": 0.2}, "/sliders": {"a": position, "c": 0.0}}
        return seen(joints={"/left/joint_states": said})

    wrong = judged(both(0.0))
    assert (wrong.ok, wrong.required) == (False, True)
    assert wrong.detail == (
        "/left/joint_states: /robot and /sliders both publish a; a is 1.571 and 0.000"
    )
    same = judged(both(1.571))
    assert (same.ok, same.required) == (False, False)
    assert same.detail == "/left/joint_states: /robot and /sliders both publish a"


def test_publishers_whose_messages_cannot_be_told_apart_are_named() -> None:
    found = judged(seen(joints={"/joint_states": {"/robot": {}, "/sliders": {}}}))
    assert (found.ok, found.required) == (False, False)
    assert found.detail == "/joint_states has 2 publishers: /robot, /sliders"
