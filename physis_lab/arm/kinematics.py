"""Forward and inverse kinematics of the arm, with MuJoCo as the only source of geometry."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from physis_core.types import Array
from physis_lab.arm.limits import JOINT_NAMES, UR5E_LIMITS, ArmLimits
from physis_lab.arm.scene import END_EFFECTOR_SITE

HOME_RAD: tuple[float, ...] = (-0.294, -1.5795, 2.0791, -2.0704, -1.5708, -0.294)
"""Elbow up, tool down, the end effector above the middle of the tasks' box."""

TOOL_DOWN: Array = np.array([[0.0, -1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
"""Orientation of the end effector that the tasks ask for (columns: its axes in the world)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pose:
    """Position [3] in metres and rotation [3, 3] of the end effector in the world."""

    position: Array
    rotation: Array


class Unreachable(ValueError):
    """No joint position within the limits puts the end effector there."""


class Kinematics:
    """Has its own MjData, so it does not disturb a running plant. Not thread-safe."""

    def __init__(self, model: mujoco.MjModel, limits: ArmLimits = UR5E_LIMITS) -> None:
        self._model = model
        self._data = mujoco.MjData(model)
        self._joints = np.array([model.joint(n).qposadr[0] for n in JOINT_NAMES])
        self._dofs = np.array([model.joint(n).dofadr[0] for n in JOINT_NAMES])
        self._site = model.site(END_EFFECTOR_SITE).id
        self._limits = limits
        self._jac_position = np.zeros((3, model.nv))
        self._jac_rotation = np.zeros((3, model.nv))

    def forward(self, joint_positions: Array) -> Pose:
        """joint_positions [6] rad -> pose of the end effector."""
        self._place(joint_positions)
        return Pose(
            position=self._data.site_xpos[self._site].copy(),
            rotation=self._data.site_xmat[self._site].reshape(3, 3).copy(),
        )

    def inverse(
        self,
        position: Array,
        start: Array | None = None,
        rotation: Array = TOOL_DOWN,
        tolerance_m: float = 1e-5,
        iterations: int = 60,
    ) -> Array:
        """Joint positions [6] rad that put the end effector at `position` [3] m.

        Damped least squares on position and orientation from `start` (default: the home pose), so
        the solution stays in the branch of that pose.

        Raises:
            Unreachable: not converged within the limits.
        """
        joints = np.array(HOME_RAD if start is None else start, dtype=np.float64)
        lower, upper = self._limits.lower, self._limits.upper
        error_m = np.inf
        for _ in range(iterations):
            self._place(joints)
            here = self._data.site_xmat[self._site].reshape(3, 3)
            to_go = np.asarray(position) - self._data.site_xpos[self._site]
            # Rotation vector of small turns: half the sum of the axes' cross products.
            gap = here @ rotation.T
            turn = 0.5 * np.array(
                [gap[1, 2] - gap[2, 1], gap[2, 0] - gap[0, 2], gap[0, 1] - gap[1, 0]]
            )
            error_m = float(np.linalg.norm(to_go))
            if error_m < tolerance_m and float(np.linalg.norm(turn)) < 1e-4:
                return joints
            mujoco.mj_jacSite(
                self._model, self._data, self._jac_position, self._jac_rotation, self._site
            )
            jacobian = np.vstack([self._jac_position, self._jac_rotation])[:, self._dofs]
            error = np.concatenate([to_go, turn])
            # Damping decreases with the error: robust far away, quadratic convergence near the
            # solution.
            damping = 1e-6 + 1e-2 * min(1.0, float(error @ error))
            step = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + damping * np.eye(6), error)
            joints = np.clip(joints + np.clip(step, -0.3, 0.3), lower, upper)
        raise Unreachable(
            f"position: {np.asarray(position).tolist()}: off by {error_m:.4f} m after"
            f" {iterations} iterations"
        )

    def _place(self, joint_positions: Array) -> None:
        self._data.qpos[self._joints] = joint_positions
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)
