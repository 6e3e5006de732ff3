"""The arm as a URDF without meshes, for RViz, limits and kinematics.

python -m physis_lab.arm.urdf > config/robots/ur5e.urdf
"""

from __future__ import annotations

import math

from physis_lab.arm.limits import JOINT_NAMES, UR5E_LIMITS, ArmLimits
from physis_lab.arm.scene import UR5E_LINKS, Link

_EFFORT_NM = (150.0, 150.0, 150.0, 28.0, 28.0, 28.0)


def urdf_text(limits: ArmLimits = UR5E_LIMITS) -> str:
    """The robot description: `base_link`, six moving links and the flange `tool0`."""
    parts = [
        '<?xml version="1.0"?>',
        '<robot name="ur5e">',
        '  <link name="base_link"/>',
        '  <link name="base"/>',
        _fixed("base_joint", "base_link", "base", "0 0 0", f"0 0 {math.pi:.9f}"),
    ]
    parent, xyz, roll = "base", "0 0 0", 0.0
    for i, link in enumerate(UR5E_LINKS):
        parts.append(_link(link))
        parts.append(
            f'  <joint name="{JOINT_NAMES[i]}" type="revolute">\n'
            f'    <parent link="{parent}"/>\n'
            f'    <child link="{link.name}_link"/>\n'
            f'    <origin xyz="{xyz}" rpy="{roll:.9f} 0 0"/>\n'
            f'    <axis xyz="0 0 1"/>\n'
            f'    <limit lower="{limits.lower_rad[i]:.9f}" upper="{limits.upper_rad[i]:.9f}"'
            f' velocity="{limits.velocity_rad_s[i]:.9f}" effort="{_EFFORT_NM[i]}"/>\n'
            f"  </joint>"
        )
        parent, xyz, roll = f"{link.name}_link", f"{link.a_m} 0 {link.d_m}", link.alpha_rad
    parts.append('  <link name="tool0"/>')
    parts.append(_fixed("tool0_joint", parent, "tool0", xyz, f"{roll:.9f} 0 0"))
    parts.append("</robot>")
    return "\n".join(parts) + "\n"


def _fixed(name: str, parent: str, child: str, xyz: str, rpy: str) -> str:
    return (
        f'  <joint name="{name}" type="fixed">\n'
        f'    <parent link="{parent}"/>\n'
        f'    <child link="{child}"/>\n'
        f'    <origin xyz="{xyz}" rpy="{rpy}"/>\n'
        f"  </joint>"
    )


def _link(link: Link) -> str:
    """A cylinder along the link, and the inertia of that cylinder, both in its middle."""
    length = max(abs(link.a_m), abs(link.d_m))
    pitch = math.pi / 2 if abs(link.a_m) > abs(link.d_m) else 0.0
    middle = f'<origin xyz="{link.a_m / 2:.9f} 0 {link.d_m / 2:.9f}" rpy="0 {pitch:.9f} 0"/>'
    shape = f'{middle}<geometry><cylinder radius="{link.radius_m}" length="{length}"/></geometry>'
    along = link.mass_kg * link.radius_m**2 / 2
    across = link.mass_kg * (3 * link.radius_m**2 + length**2) / 12
    r, g, b = link.rgb
    return (
        f'  <link name="{link.name}_link">\n'
        f"    <visual>{shape}"
        f'<material name="{link.name}"><color rgba="{r} {g} {b} 1"/></material></visual>\n'
        f"    <collision>{shape}</collision>\n"
        f'    <inertial>{middle}<mass value="{link.mass_kg}"/>'
        f'<inertia ixx="{across:.6f}" iyy="{across:.6f}" izz="{along:.6f}"'
        ' ixy="0" ixz="0" iyz="0"/></inertial>\n'
        f"  </link>"
    )


if __name__ == "__main__":
    print(urdf_text(), end="")
