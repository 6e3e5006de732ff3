import pytest

from physis_core.types import UserError
from physis_ros.robot.robot_files import check_robot_joints, load_robot_limits, robot_file_path

URDF = """<robot name="r"><joint name="elbow_joint" type="revolute">
<limit lower="-1" upper="1" velocity="1"/></joint></robot>"""


def limits(**fields):
    return load_robot_limits(**{"robot_file": "ur5e", **fields})


def test_a_robot_is_found_by_name_and_by_path():
    assert limits().names[2] == "elbow_joint"
    assert robot_file_path(str(robot_file_path("ur5e"))).name == "ur5e.yaml"


def test_the_description_tightens_the_file(tmp_path):
    assert limits(robot_description=URDF).upper[2] == 1.0
    path = tmp_path / "r.urdf"
    path.write_text(URDF)
    assert limits(robot_description_file=str(path)).velocity[2] == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"robot_file": "toaster"}, "robot_file: 'toaster'.*robots: .*ur5e"),
        ({"robot_file": ""}, "no limits: set robot_file"),
        ({"robot_description_file": "/none.urdf"}, "cannot be read"),
        ({"joint_names": ("tail",)}, "'tail': no limits"),
    ],
)
def test_what_is_missing_is_named(fields, message):
    with pytest.raises(UserError, match=message):
        limits(**fields)


GRIPPER = """<robot name="r">
<joint name="elbow_joint" type="revolute"><limit lower="-1" upper="1" velocity="1"/></joint>
<joint name="finger" type="prismatic"><limit lower="0" upper="0.04" velocity="0"/></joint>
<joint name="wheel" type="revolute"/>
</robot>"""


def test_joints_that_nobody_commands_are_not_looked_at(tmp_path):
    assert limits(robot_description=GRIPPER).upper[2] == 1.0
    path = tmp_path / "r.urdf"
    path.write_text(GRIPPER)
    names = ("elbow_joint", "finger")
    with pytest.raises(UserError, match=r"joints.finger.velocity_m_s: 0.0.*\(in .*r.urdf\)"):
        limits(joint_names=names, robot_description_file=str(path))


def test_moveits_limits_tighten_the_rest(tmp_path):
    path = tmp_path / "joint_limits.yaml"
    path.write_text(
        "joint_limits: {elbow_joint: {has_velocity_limits: true, max_velocity: 0.5, "
        "has_acceleration_limits: true, max_acceleration: 99.0}}"
    )
    found = limits(joint_limits_file=str(path))
    assert (found.velocity[2], found.acceleration[2]) == (0.5, 8.0)


def test_a_prefix_stands_before_the_names_of_every_source(tmp_path):
    path = tmp_path / "r.urdf"
    path.write_text(URDF.replace("elbow_joint", "left_elbow_joint"))
    for source in ({"robot_description": URDF}, {"robot_description_file": str(path)}):
        found = limits(joint_prefix="left_", **source)
        assert found.names[2] == "left_elbow_joint"
        assert found.upper[2] == 1.0
    assert limits(joint_prefix="left_", joint_names=("elbow_joint",)).names == ("left_elbow_joint",)


def test_of_two_arms_in_one_description_the_prefix_takes_its_own():
    both = """<robot name="r">
<joint name="elbow_joint" type="revolute"><limit lower="-2" upper="2" velocity="1"/></joint>
<joint name="left_elbow_joint" type="revolute"><limit lower="-3" upper="3" velocity="1"/></joint>
</robot>"""
    assert limits(joint_prefix="left_", robot_description=both).upper[2] == 3.0


def test_a_model_is_compared_without_the_prefix(tmp_path):
    path = tmp_path / "left.yaml"
    path.write_text("joints: {left_a: {}, left_b: {}}")
    check_robot_joints(("a", "b"), str(path), "left_")
    with pytest.raises(UserError, match="joint_names: 'c': the model needs this; .*left has a, b"):
        check_robot_joints(("a", "c"), str(path), "left_")
