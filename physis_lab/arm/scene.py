"""The MuJoCo scene: a UR5e-class arm of capsules, a floor, a task's props and one fixed camera.

The chain is generated from the manufacturer's public Denavit-Hartenberg table. Frame i+1 sits at
(a_i, 0, d_i) of frame i and is turned by alpha_i about x; joint i turns frame i about its z axis.
A dark disc on the floor replaces the ball's shadow under an overhead lamp: on a CPU real shadows
cost several times the rest of the rendering, and the disc shows the depth equally well.
Lengths in metres, angles in radians. The base is turned by pi about z so that a zero pan angle
points along +x, like `base_link` in the manufacturer's URDF.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mujoco

from physis_core.types import Array
from physis_lab.arm.limits import JOINT_NAMES, UR5E_LIMITS, ArmLimits

CAMERA_NAME = "front"
CAMERA_FOVY_DEG = 48.0
TARGET_BODY = "target"
SHADOW_BODY = "target_shadow"
END_EFFECTOR_SITE = "end_effector"
BALL_RADIUS_M = 0.045
PLANT_STEP_S = 0.002
TOOL_GEOM = "wrist_3"
"""The last link. Its round tip ends TOOL_TIP_M beyond the end effector's site."""
FLOOR_GEOM = "floor"
OBJECT_BODY = "object"
TOOL_TIP_M = 0.034


@dataclass(frozen=True, slots=True, kw_only=True)
class Props:
    """The objects of a task, as MJCF.

    `mark` and `shadow` are the geoms of the two bodies that `place_target` moves; `bodies` go into
    the world (an object to be moved is OBJECT_BODY, with a free joint); `contacts` are <pair>s.
    There are no other contacts: without pairs the arm moves freely.
    """

    mark: str
    shadow: str
    bodies: str = ""
    contacts: str = ""
    cone: str = "pyramidal"
    """MuJoCo's friction cone. A pyramidal cone slides more easily in some directions."""


BALL = Props(
    mark=f'''<geom name="{TARGET_BODY}" type="sphere" size="{BALL_RADIUS_M}" rgba="0.92 0.05 0.05 1"
            contype="0" conaffinity="0"/>''',
    shadow=f'''<geom name="{SHADOW_BODY}" type="cylinder" size="{BALL_RADIUS_M} 0.001"
            rgba="0.25 0.25 0.25 1" contype="0" conaffinity="0"/>''',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One row of the DH table (`a_m`, `d_m`, `alpha_rad`) and the look and mass of the body."""

    name: str
    a_m: float
    d_m: float
    alpha_rad: float
    mass_kg: float
    radius_m: float
    rgb: tuple[float, float, float]


_BLUE = (0.10, 0.28, 0.75)
# The last link is bright so that the end effector shows at 64 x 64 pixels.
_YELLOW = (0.98, 0.78, 0.08)
_GREY = (0.30, 0.32, 0.36)

UR5E_LINKS: tuple[Link, ...] = (
    Link(
        name="shoulder",
        a_m=0.0,
        d_m=0.1625,
        alpha_rad=math.pi / 2,
        mass_kg=3.76,
        radius_m=0.062,
        rgb=_GREY,
    ),
    Link(
        name="upper_arm",
        a_m=-0.425,
        d_m=0.0,
        alpha_rad=0.0,
        mass_kg=8.06,
        radius_m=0.052,
        rgb=_BLUE,
    ),
    Link(
        name="forearm", a_m=-0.3922, d_m=0.0, alpha_rad=0.0, mass_kg=2.85, radius_m=0.045, rgb=_BLUE
    ),
    Link(
        name="wrist_1",
        a_m=0.0,
        d_m=0.1333,
        alpha_rad=math.pi / 2,
        mass_kg=1.37,
        radius_m=0.040,
        rgb=_GREY,
    ),
    Link(
        name="wrist_2",
        a_m=0.0,
        d_m=0.0997,
        alpha_rad=-math.pi / 2,
        mass_kg=1.30,
        radius_m=0.040,
        rgb=_GREY,
    ),
    Link(
        name="wrist_3",
        a_m=0.0,
        d_m=0.0996,
        alpha_rad=0.0,
        mass_kg=0.37,
        radius_m=0.034,
        rgb=_YELLOW,
    ),
)


def build_model(limits: ArmLimits = UR5E_LIMITS, props: Props = BALL) -> mujoco.MjModel:
    """Compile the scene of the arm and `props`."""
    return mujoco.MjModel.from_xml_string(scene_xml(limits, props))


def place_target(model: mujoco.MjModel, data: mujoco.MjData, position: Array) -> None:
    """Put the task's mark, and the disc under it, at `position` [3] m."""
    data.mocap_pos[model.body(TARGET_BODY).mocapid[0]] = position
    data.mocap_pos[model.body(SHADOW_BODY).mocapid[0], :2] = position[:2]


def scene_xml(limits: ArmLimits = UR5E_LIMITS, props: Props = BALL) -> str:
    """The scene as MJCF text."""
    return f"""<mujoco model="physis_arm">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{PLANT_STEP_S}" integrator="Euler" cone="{props.cone}">
    <flag eulerdamp="disable"/>
  </option>
  <visual>
    <global offwidth="1280" offheight="960"/>
    <headlight ambient="0.42 0.42 0.42" diffuse="0.30 0.30 0.30" specular="0 0 0"/>
    <quality shadowsize="0" offsamples="0" numslices="20" numstacks="12" numquads="1"/>
    <map znear="0.02" zfar="20"/>
  </visual>
  <worldbody>
    <light name="lamp" type="directional" pos="0.3 0 2.5" dir="0 0 -1" diffuse="0.55 0.55 0.55"
           specular="0.1 0.1 0.1" castshadow="false"/>
    <geom name="{FLOOR_GEOM}" type="plane" size="3 3 0.1" rgba="0.80 0.82 0.78 1"/>
    <camera name="{CAMERA_NAME}" pos="1.28 0 0.80" xyaxes="0 1 0 -0.49 0 0.872"
            fovy="{CAMERA_FOVY_DEG}"/>
    <body name="{TARGET_BODY}" mocap="true" pos="0.45 0 0.2">
      {props.mark}
    </body>
    <body name="{SHADOW_BODY}" mocap="true" pos="0.45 0 0.001">
      {props.shadow}
    </body>
    <body name="base" pos="0 0 0" quat="0 0 0 1">
      <geom name="pedestal" type="cylinder" fromto="0 0 0 0 0 0.1" size="0.075"
            rgba="0.3 0.32 0.36 1" contype="0" conaffinity="0"/>
{_chain(limits)}
    </body>
    {props.bodies}
  </worldbody>
  <contact>{props.contacts}</contact>
</mujoco>
"""


def _chain(limits: ArmLimits) -> str:
    opening: list[str] = []
    a_m, d_m, alpha_rad = 0.0, 0.0, 0.0
    for i, link in enumerate(UR5E_LINKS):
        lower, upper = limits.lower_rad[i], limits.upper_rad[i]
        half = alpha_rad / 2
        opening.append(
            f'<body name="{link.name}" pos="{a_m} 0 {d_m}" '
            f'quat="{math.cos(half)} {math.sin(half)} 0 0" gravcomp="1">\n'
            f'<joint name="{JOINT_NAMES[i]}" type="hinge" axis="0 0 1" range="{lower} {upper}"'
            f' armature="0.1"/>\n' + _geom(link, last=i == len(UR5E_LINKS) - 1)
        )
        a_m, d_m, alpha_rad = link.a_m, link.d_m, link.alpha_rad
    return "\n".join(opening) + "</body>" * len(UR5E_LINKS)


def _geom(link: Link, *, last: bool) -> str:
    r, g, b = link.rgb
    common = f'rgba="{r} {g} {b} 1" contype="0" conaffinity="0"'
    capsule = (
        f'<geom name="{link.name}" type="capsule" fromto="0 0 0 {link.a_m} 0 {link.d_m}" '
        f'size="{link.radius_m}" mass="{link.mass_kg}" {common}/>\n'
    )
    if not last:
        return capsule
    return capsule + (
        f'<site name="{END_EFFECTOR_SITE}" pos="0 0 {link.d_m}" size="0.005" rgba="0 0 0 0"/>\n'
    )
