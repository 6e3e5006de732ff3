from __future__ import annotations

import numpy as np
import pytest

from physis_lab.arm.kinematics import HOME_RAD
from physis_lab.arm.limits import UR5E_LIMITS
from physis_lab.arm.plant import Plant
from physis_lab.arm.scene import build_model

MODEL = build_model()
HOME = np.array(HOME_RAD)


def test_stands_still_against_gravity() -> None:
    plant = Plant(MODEL)
    plant.reset(HOME)
    for _ in range(500):
        plant.step(HOME, np.zeros(6))
    assert plant.position == pytest.approx(HOME, abs=1e-5)


def test_tracks_a_moving_command_closely() -> None:
    plant = Plant(MODEL)
    plant.reset(HOME)
    times = np.arange(0.0, 2.0, plant.step_s)
    swing = 0.3 * (1.0 - np.cos(2.0 * times))
    speed = 0.6 * np.sin(2.0 * times)
    errors = []
    for offset, rate in zip(swing, speed, strict=True):
        plant.step(HOME + offset, np.full(6, rate))
        errors.append(np.abs(plant.position - HOME - offset).max())
    assert max(errors) < 0.005


def test_a_leap_is_followed_within_the_drives_limits() -> None:
    plant = Plant(MODEL)
    plant.reset(HOME)
    fastest = hardest = furthest = 0.0
    for _ in range(1500):
        plant.step(HOME + 0.8, np.zeros(6))
        fastest = max(fastest, float(np.abs(plant.velocity).max()))
        hardest = max(hardest, float(np.abs(plant.acceleration).max()))
        furthest = max(furthest, float((plant.position - HOME).max()))
    assert furthest < 0.81
    assert fastest <= max(UR5E_LIMITS.velocity_rad_s) * 1.001
    assert hardest <= max(UR5E_LIMITS.acceleration_rad_s2) * 1.001
    assert plant.position == pytest.approx(HOME + 0.8, abs=1e-3)
