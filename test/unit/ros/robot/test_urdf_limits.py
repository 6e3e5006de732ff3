import pytest

from physis_core.types import UserError
from physis_ros.robot.urdf_limits import limits_from_urdf

URDF = """<?xml version="1.0"?>
<robot name="r">
  <joint name="world" type="fixed"/>
  <joint name="lift" type="revolute">
    <limit lower="-1.0" upper="2.0" velocity="3.0" effort="10"/>
    <safety_controller soft_lower_limit="-0.5" soft_upper_limit="3.0" k_velocity="1"/>
  </joint>
  <joint name="spin" type="continuous"><limit velocity="2.0" effort="1"/></joint>
  <joint name="free" type="continuous"/>
  <joint name="slide" type="prismatic"><limit lower="0" upper="0.5" velocity="0.1"/></joint>
  <joint name="finger" type="revolute">
    <limit lower="0" upper="1" velocity="1"/><mimic joint="lift"/>
  </joint>
</robot>"""


def test_reads_moving_joints_and_leaves_out_fixed_and_mimic():
    limits = limits_from_urdf(URDF)
    assert set(limits) == {"lift", "spin", "free", "slide"}
    assert (limits["lift"].lower, limits["lift"].upper) == (-0.5, 2.0)
    assert limits["spin"].continuous
    assert limits["spin"].velocity == 2.0
    assert limits["free"].lower is None
    assert limits["slide"].prismatic


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<robot", "not valid XML"),
        ("<sdf/>", "root element must be <robot>"),
        ('<!DOCTYPE robot [<!ENTITY a "b">]><robot>&a;</robot>', "document type is not accepted"),
        ('<!DOCTYPE robot SYSTEM "file:///etc/passwd"><robot/>', "document type"),
        ('<robot><joint name="a" type="revolute"/></robot>', "joints.a.limit.*must have one"),
        (
            '<robot><joint name="a" type="revolute"><limit lower="x"/></joint></robot>',
            "joints.a.lower: 'x': must be a number",
        ),
        (
            '<robot><joint name="a" type="revolute">'
            '<limit lower="-inf" upper="1"/></joint></robot>',
            "must be finite",
        ),
        (
            '<robot><joint name="a" type="revolute">'
            '<limit lower="-90" upper="90" velocity="1"/></joint></robot>',
            "degrees",
        ),
        (
            '<robot><joint name="a" type="continuous"/><joint name="a" type="continuous"/></robot>',
            "two joints",
        ),
        ('<robot><joint type="continuous"/></robot>', "without a name"),
    ],
)
def test_wrong_descriptions_get_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        limits_from_urdf(text)
    assert "\n" not in str(caught.value)
