"""`physis doctor` on this machine, which must be healthy for the other tests to mean anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_domain import free_domain

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def doctor(tmp_path: Path, **environment: str) -> tuple[int, str, dict[str, dict[str, object]]]:
    out = tmp_path / "doctor.json"
    done = subprocess.run(
        [sys.executable, "-m", "physis_ros.cli.main", "doctor", "--json", str(out)],
        cwd=ROOT,
        env={**os.environ, "ROS_DOMAIN_ID": str(free_domain()), **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    findings = json.loads(out.read_text())["findings"]
    return done.returncode, done.stdout, {item["name"]: item for item in findings}


def test_this_machine_is_ready(tmp_path: Path) -> None:
    code, text, findings = doctor(tmp_path)
    assert code == 0, text
    assert "this machine is ready" in text
    for name in ("packages", "messages", "dds", "rendering", "torch"):
        assert findings[name]["ok"], text


def test_a_wrong_domain_is_said_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    code, text, findings = doctor(tmp_path, ROS_DOMAIN_ID="999")
    assert code == 1
    assert not findings["ros domain"]["ok"]
    assert findings["messages"]["ok"], text
    assert text.splitlines()[-1] == "missing or wrong: ros domain"
