from rcl_interfaces.msg import ParameterType, ParameterValue

from physis_ros.safety.controller_client import _values
from physis_ros.safety.surroundings import ControllerFacts, problems, state_of, unknown

JOINTS = ("lift", "bend")
TOPIC = "/joint_trajectory_controller/joint_trajectory"


def facts(**known):
    return ControllerFacts(topic=TOPIC, **known)


def test_what_is_not_known_is_no_problem_but_is_named():
    assert problems(facts(), JOINTS, positions=False) == ()
    assert unknown(facts(), positions=False) == (
        "not checked of the controller: whether it is active, its joints, "
        "interpolate_from_desired_state"
    )
    known = facts(state="active", joints=JOINTS, interpolates=True)
    assert unknown(known, positions=False) == ""
    assert problems(known, JOINTS, positions=False) == ()


def test_each_problem_is_one_line():
    found = problems(
        facts(
            publishers=("/rqt", "/world_node"),
            state="inactive",
            joints=("bend", "spin"),
            interpolates=False,
        ),
        JOINTS,
        positions=False,
    )
    assert found[:2] == (
        f"/rqt publishes on {TOPIC}, too",
        f"/world_node publishes on {TOPIC}, too",
    )
    assert found[2] == f"controller of {TOPIC}: inactive, must be active"
    assert found[3] == "controller: has no joint lift"
    assert found[4] == "controller: its joint spin is not one of ours"
    assert "interpolate_from_desired_state is false" in found[5]


def test_bare_positions_need_the_joints_in_our_order():
    permuted = facts(joints=("bend", "lift"), interpolates=False)
    assert problems(permuted, JOINTS, positions=False) != ()
    assert problems(permuted, JOINTS, positions=True) == (
        "controller: joints bend, lift; ours are lift, bend, in order",
    )
    assert problems(facts(joints=JOINTS), JOINTS, positions=True) == ()


def test_the_state_of_a_controller_that_is_not_listed():
    assert state_of("arm", [("arm", "active"), ("gripper", "inactive")]) == "active"
    assert state_of("leg", [("arm", "active")]) == "not loaded"


def test_parameters_that_a_controller_does_not_have_are_unknown():
    not_set = ParameterValue(type=ParameterType.PARAMETER_NOT_SET)
    joints = ParameterValue(
        type=ParameterType.PARAMETER_STRING_ARRAY, string_array_value=["lift", "bend"]
    )
    false = ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=False)
    assert _values([joints, false]) == (JOINTS, False)
    assert _values([not_set, not_set]) == (None, None)
    assert _values([]) == (None, None)
