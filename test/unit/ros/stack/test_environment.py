"""The environment of nodes: complete without anything sourced, and free of a second ROS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from physis_core.types import UserError
from physis_ros.stack.environment import process_environment


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    prefix = tmp_path / "venv"
    (prefix / "lib").mkdir(parents=True)
    (prefix / "lib" / "librcl.so").touch()
    return prefix


def test_an_empty_environment_is_made_whole(prefix: Path) -> None:
    made = process_environment({}, prefix)
    assert made["AMENT_PREFIX_PATH"] == str(prefix)
    assert made["RMW_IMPLEMENTATION"] == "rmw_fastrtps_cpp"
    assert "PYTHONPATH" not in made


def test_an_environment_beside_a_distribution_keeps_it(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "share" / "ament_index").mkdir(parents=True)
    distribution = tmp_path / "opt"
    (distribution / "lib").mkdir(parents=True)
    (distribution / "lib" / "librcl.so").touch()
    given = {
        "AMENT_PREFIX_PATH": str(distribution),
        "LD_LIBRARY_PATH": str(distribution / "lib"),
    }
    made = process_environment(given, venv)
    assert {name: made[name] for name in given} == given
    assert "RMW_IMPLEMENTATION" not in made

    # `pip install .` puts our messages into the environment.
    (venv / "lib").mkdir()
    (venv / "lib" / "libphysis_ros__rosidl_typesupport_c.so").touch()
    made = process_environment(given, venv)
    assert made["AMENT_PREFIX_PATH"] == f"{venv}{os.pathsep}{distribution}"
    assert made["LD_LIBRARY_PATH"] == f"{venv / 'lib'}{os.pathsep}{distribution / 'lib'}"


def test_a_distribution_that_was_sourced_is_taken_out(prefix: Path, tmp_path: Path) -> None:
    distribution = tmp_path / "opt"
    (distribution / "python" / "rclpy").mkdir(parents=True)
    (distribution / "lib").mkdir()
    (distribution / "lib" / "librcl.so").touch()
    mine = tmp_path / "mine"
    given = {
        "AMENT_PREFIX_PATH": str(distribution),
        "PYTHONPATH": os.pathsep.join([str(distribution / "python"), str(mine)]),
        "LD_LIBRARY_PATH": os.pathsep.join([str(distribution / "lib"), str(prefix / "lib")]),
        "HOME": "/home/x",
    }
    made = process_environment(given, prefix)
    assert made["AMENT_PREFIX_PATH"] == str(prefix)
    assert made["PYTHONPATH"] == str(mine)
    assert made["LD_LIBRARY_PATH"] == str(prefix / "lib")
    assert made["HOME"] == "/home/x"


def test_without_wheels_the_distribution_stays_as_it_is(tmp_path: Path) -> None:
    given = {"AMENT_PREFIX_PATH": "/opt/ros/x", "PYTHONPATH": "/opt/ros/x/lib/python3"}
    made = process_environment(given, tmp_path)
    assert {name: made[name] for name in given} == given
    assert "RMW_IMPLEMENTATION" not in made


def test_what_the_user_chose_stays(prefix: Path) -> None:
    given = {"RMW_IMPLEMENTATION": "rmw_x", "OMP_NUM_THREADS": "4", "ROS_DOMAIN_ID": "3"}
    made = process_environment(given, prefix)
    assert {name: made[name] for name in given} == given


def test_a_wrong_domain_is_refused(prefix: Path) -> None:
    with pytest.raises(UserError, match="ROS_DOMAIN_ID: '999'"):
        process_environment({"ROS_DOMAIN_ID": "999"}, prefix)
