from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_core.types import UserError
from physis_ros.robot.kinematic_chain import KinematicChain

URDF = (Path(__file__).parents[4] / "config" / "robots" / "ur5e.urdf").read_text()
NAMES = (
    "shoulder_pan_joint",
    "shoulder_lift_joint",
    "elbow_joint",
    "wrist_1_joint",
    "wrist_2_joint",
    "wrist_3_joint",
)
ANGLES = st.lists(st.floats(-3.0, 3.0), min_size=6, max_size=6)


@pytest.fixture(scope="module")
def by_mujoco():
    mujoco = pytest.importorskip("mujoco", reason="MuJoCo belongs to the extra `lab`")
    model = mujoco.MjModel.from_xml_string(URDF)
    data = mujoco.MjData(model)

    def tool(joints):
        for name, value in zip(NAMES, joints):
            data.qpos[model.joint(name).qposadr[0]] = value
        mujoco.mj_kinematics(model, data)
        return data.body("wrist_3_link").xpos.copy()

    return tool


@settings(deadline=None, max_examples=50)
@given(joints=ANGLES)
def test_the_tool_is_where_mujoco_puts_it(by_mujoco, joints):
    chain = KinematicChain(URDF, NAMES, "wrist_3_link")
    place, _ = chain.tool(np.array([joints]), np.zeros((1, 6)))
    assert place[0] == pytest.approx(by_mujoco(joints), abs=1e-6)


@settings(deadline=None)
@given(joints=ANGLES, speeds=ANGLES)
def test_the_speed_is_the_slope_of_the_place(joints, speeds):
    chain = KinematicChain(URDF, NAMES, "wrist_3_link")
    q, v = np.array(joints), np.array(speeds)
    step_s = 1e-6
    places, _ = chain.tool(np.array([q - step_s * v, q + step_s * v]), np.zeros((2, 6)))
    _, speed = chain.tool(q[None], v[None])
    assert speed[0] == pytest.approx(np.linalg.norm(places[1] - places[0]) / (2 * step_s), abs=1e-4)


ONE = """<robot name="r"><link name="a"/><link name="b"/><link name="c"/>
<joint name="slide" type="{kind}"><parent link="a"/><child link="b"/>
<origin xyz="0 0 1"/><axis xyz="{axis}"/></joint>
<joint name="end" type="fixed"><parent link="b"/><child link="c"/><origin xyz="0.5 0 0"/></joint>
</robot>"""


def test_prismatic_joints_joint_order_and_a_prefix():
    text = ONE.format(kind="prismatic", axis="0 2 0")
    chain = KinematicChain(text, ("left_turn", "left_slide"), "c", prefix="left_")
    place, speed = chain.tool(np.array([[9.0, 0.25]]), np.array([[9.0, -0.5]]))
    assert place[0] == pytest.approx([0.5, 0.25, 1.0])
    assert speed[0] == pytest.approx(0.5)
    assert chain.base_link == "a"


@pytest.mark.parametrize(
    ("text", "names", "link", "reason"),
    [
        (ONE.format(kind="revolute", axis="0 0 1"), ("slide",), "d", "tool_link: 'd': is no link"),
        (
            ONE.format(kind="revolute", axis="0 0 1"),
            ("turn",),
            "c",
            "joint slide on the way is not",
        ),
        (ONE.format(kind="planar", axis="0 0 1"), ("slide",), "c", "joints.slide.type: 'planar'"),
        (ONE.format(kind="revolute", axis="0 0 0"), ("slide",), "c", "has no length"),
        (ONE.format(kind="revolute", axis="0 0 x"), ("slide",), "c", "three finite numbers"),
    ],
)
def test_what_leads_nowhere_is_refused_by_field(text, names, link, reason):
    with pytest.raises(UserError, match=reason):
        KinematicChain(text, names, link)
