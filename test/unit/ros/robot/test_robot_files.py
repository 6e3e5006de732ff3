import pytest

from physis_core.types import UserError
from physis_ros.robot.robot_files import load_robot_limits, robot_file_path

URDF = """<robot name="r"><joint name="elbow_joint" type="revolute">
<limit lower="-1" upper="1" velocity="1"/></joint></robot>"""


def limits(**fields):
    given = {
        "joint_names": (),
        "robot_file": "ur5e",
        "robot_description": "",
        "robot_description_file": "",
    }
    return load_robot_limits(**{**given, **fields})


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
