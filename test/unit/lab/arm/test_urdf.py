from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from physis_lab.arm.kinematics import HOME_RAD, Kinematics
from physis_lab.arm.limits import JOINT_NAMES, UR5E_LIMITS
from physis_lab.arm.scene import build_model
from physis_lab.arm.urdf import urdf_text

FILE = Path(__file__).parents[4] / "config" / "robots" / "ur5e.urdf"


def test_file_is_what_the_module_prints() -> None:
    assert FILE.read_text() == urdf_text()


def test_same_kinematics_and_limits_as_the_scene() -> None:
    # MuJoCo folds fixed links away unless told not to, and tool0 with them.
    compiler = '<mujoco><compiler fusestatic="false"/></mujoco>'
    text = urdf_text().replace('<robot name="ur5e">', f'<robot name="ur5e">{compiler}')
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    kinematics = Kinematics(build_model())
    for joints in (np.zeros(6), np.array(HOME_RAD), np.linspace(-1.0, 1.5, 6)):
        data.qpos[:] = joints
        mujoco.mj_kinematics(model, data)
        pose = kinematics.forward(joints)
        assert data.body("tool0").xpos == pytest.approx(pose.position, abs=1e-6)
        assert data.body("tool0").xmat.reshape(3, 3) == pytest.approx(pose.rotation, abs=1e-6)
    for i, name in enumerate(JOINT_NAMES):
        low, high = UR5E_LIMITS.lower_rad[i], UR5E_LIMITS.upper_rad[i]
        assert model.joint(name).range == pytest.approx([low, high])
