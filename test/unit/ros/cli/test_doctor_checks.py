"""The doctor's findings where something is wrong; the healthy machine is an integration test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from physis_ros.cli import doctor_checks as checks
from physis_ros.cli.doctor_checks import probe
from physis_ros.node.packages import command_for


def test_a_lock_that_differs_names_each_package(tmp_path: Path) -> None:
    numpy = metadata.version("numpy")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"# pins\nnumpy=={numpy}\nno-such-package-here==1.0\npyyaml==0.0.1\n")
    found = checks.pinned_packages(lock)
    assert not found.ok
    assert found.required
    assert "missing: no-such-package-here" in found.detail
    assert "pyyaml" in found.detail
    assert "instead of 0.0.1" in found.detail
    assert found.remedy


def test_a_local_label_and_a_foreign_marker_are_no_difference(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    torch = metadata.version("torch").partition("+")[0]
    lock.write_text(f'torch=={torch}\nno-such-package-here==1.0; python_version == "2.7"\n')
    assert checks.pinned_packages(lock).ok
    assert checks.pinned_packages(None).ok


@pytest.mark.parametrize("value", ["233", "-1", "abc", "1.5"])
def test_a_wrong_domain_is_one_line_with_the_value(value: str) -> None:
    found = checks.domain({"ROS_DOMAIN_ID": value})
    assert not found.ok
    assert found.detail.startswith(f"ROS_DOMAIN_ID: {value!r}: must be an integer from 0 to 232")
    assert "\n" not in found.detail


def test_a_domain_above_the_safe_ones_is_a_note() -> None:
    found = checks.domain({"ROS_DOMAIN_ID": "200"})
    assert not found.required
    assert "prefer 0 to 101" in found.remedy


def test_a_middleware_that_is_not_there_is_named() -> None:
    found = checks.middleware({"RMW_IMPLEMENTATION": "rmw_nothing"})
    assert not found.ok
    assert found.remedy == "unset RMW_IMPLEMENTATION"
    assert checks.middleware({}).ok


def test_without_egl_the_apt_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(checks, "_loads", lambda name: False)
    found = checks.rendering({"MUJOCO_GL": "egl"})
    assert not found.ok
    assert found.remedy == "sudo apt install libegl1"


@pytest.mark.parametrize(
    ("check", "package"), [(checks.rendering, "mujoco"), (checks.torch_devices, "torch")]
)
def test_what_only_engine_or_lab_need_is_a_note_on_a_robot(
    check: Callable[[dict[str, str]], checks.CheckResult],
    package: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    found = check({})
    assert not found.ok
    assert not found.required
    assert f"{package!r} is not installed" in found.detail
    assert found.remedy == command_for(package)


def test_a_probe_tells_the_last_line_of_what_went_wrong() -> None:
    ok, text = probe([sys.executable, "-c", "raise ValueError('the reason')"], os.environ)
    assert not ok
    assert text == "ValueError: the reason"


def test_a_probe_that_hangs_is_ended() -> None:
    ok, text = probe([sys.executable, "-c", "import time; time.sleep(600)"], os.environ, 0.5)
    assert not ok
    assert text.startswith("no answer within")


def test_a_probe_that_crashes_is_a_finding() -> None:
    ok, text = probe([sys.executable, "-c", "import os; os.abort()"], os.environ)
    assert not ok
    assert "without output" in text
