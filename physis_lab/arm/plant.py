"""The simulated plant: six position-servoed joints with physical velocity and acceleration limits.

Each drive computes the acceleration that a critically damped position servo with velocity
feed-forward asks for, clips it to what it can do, and applies the torque that gives it (inverse
dynamics). In free space the arm therefore moves exactly by `servo_acceleration`; contacts act as
forces.
"""

from __future__ import annotations

import mujoco
import numpy as np

from physis_core.types import Array
from physis_lab.arm.limits import JOINT_NAMES, UR5E_LIMITS, ArmLimits
from physis_lab.arm.scene import END_EFFECTOR_SITE, OBJECT_BODY, place_target

SERVO_RATE_RAD_S = 60.0
"""Natural frequency of the servo: settles to 5 % in about 80 ms, like an industrial drive."""

_BRAKING_SHARE = 0.8
"""Share of the acceleration limit for planned braking; the rest is for corrections."""


def servo_acceleration(
    position: Array,
    velocity: Array,
    command_position: Array,
    command_velocity: Array,
    velocity_limit: Array,
    acceleration_limit: Array,
    step_s: float,
) -> Array:
    """Joint acceleration [6] rad/s^2 of the drives; velocity stays within its limit."""
    gap = command_position - position
    # Far from the command the speed is limited to one from which the drive can brake, so that steps
    # do not overshoot. Near it the linear law is critically damped.
    brakeable = np.sqrt(2.0 * _BRAKING_SHARE * acceleration_limit * np.abs(gap))
    closing = np.sign(gap) * np.minimum(0.5 * SERVO_RATE_RAD_S * np.abs(gap), brakeable)
    wanted = 2.0 * SERVO_RATE_RAD_S * (closing + command_velocity - velocity)
    wanted = np.clip(wanted, -acceleration_limit, acceleration_limit)
    slowest, fastest = -velocity_limit - velocity, velocity_limit - velocity
    out: Array = np.clip(wanted, slowest / step_s, fastest / step_s)
    return out


class Plant:
    """The running simulation. Belongs to one thread."""

    def __init__(self, model: mujoco.MjModel, limits: ArmLimits = UR5E_LIMITS) -> None:
        self.model = model
        self.limits = limits
        self.data = mujoco.MjData(model)
        self._joints = np.array([model.joint(n).qposadr[0] for n in JOINT_NAMES])
        self._dofs = np.array([model.joint(n).dofadr[0] for n in JOINT_NAMES])
        self._site = model.site(END_EFFECTOR_SITE).id
        self._object = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, OBJECT_BODY)
        self._velocity_limit = limits.velocity
        self._acceleration_limit = limits.acceleration
        self._wanted = np.zeros(model.nv)
        self._torque = np.zeros(model.nv)

    @property
    def step_s(self) -> float:
        return float(self.model.opt.timestep)

    @property
    def time_s(self) -> float:
        return float(self.data.time)

    @property
    def position(self) -> Array:
        """Joint positions [6] rad, in the order of JOINT_NAMES."""
        return np.array(self.data.qpos[self._joints])

    @property
    def velocity(self) -> Array:
        """Joint velocities [6] rad/s."""
        return np.array(self.data.qvel[self._dofs])

    @property
    def acceleration(self) -> Array:
        """Joint accelerations [6] rad/s^2 of the last step."""
        return np.array(self.data.qacc[self._dofs])

    @property
    def end_effector(self) -> Array:
        """Position of the end effector [3] m."""
        return np.array(self.data.site_xpos[self._site])

    @property
    def object_position(self) -> Array | None:
        """Centre of the object [3] m; None in a scene without one."""
        return None if self._object < 0 else np.array(self.data.xpos[self._object])

    def reset(self, joint_positions: Array, object_position: Array | None = None) -> None:
        """Rest at `joint_positions` [6] rad, with the object upright at `object_position` [3] m."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self._joints] = joint_positions
        if object_position is not None:
            self._set_object(object_position)
        mujoco.mj_forward(self.model, self.data)

    def place_object(self, position: Array) -> None:
        """Place the object upright and at rest, with its centre at `position` [3] m."""
        self._set_object(position)
        mujoco.mj_kinematics(self.model, self.data)

    def place_target(self, position: Array) -> None:
        place_target(self.model, self.data, position)

    def show(self, joint_positions: Array, object_position: Array | None = None) -> None:
        """Place arm and object for rendering; velocities do not change."""
        self.data.qpos[self._joints] = joint_positions
        if object_position is not None:
            self._set_object(object_position)
        mujoco.mj_kinematics(self.model, self.data)

    def step(self, command_position: Array, command_velocity: Array) -> None:
        """Advance by one step of the simulation towards the command."""
        model, data = self.model, self.data
        mujoco.mj_step1(model, data)
        self._wanted[self._dofs] = servo_acceleration(
            data.qpos[self._joints],
            data.qvel[self._dofs],
            command_position,
            command_velocity,
            self._velocity_limit,
            self._acceleration_limit,
            self.step_s,
        )
        mujoco.mj_mulM(model, data, self._torque, self._wanted)
        data.qfrc_applied[self._dofs] = (self._torque + data.qfrc_bias - data.qfrc_passive)[
            self._dofs
        ]
        mujoco.mj_step2(model, data)

    def _set_object(self, position: Array) -> None:
        if self._object < 0:
            raise ValueError("this scene has no object")
        joint = self.model.body_jntadr[self._object]
        place, speed = self.model.jnt_qposadr[joint], self.model.jnt_dofadr[joint]
        self.data.qpos[place : place + 7] = (*position, 1.0, 0.0, 0.0, 0.0)
        self.data.qvel[speed : speed + 6] = 0.0
