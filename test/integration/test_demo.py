"""The main job, whole: `physis demo` starts every process, the arm moves, the report says how."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 400.0


def physis(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "ROS_DOMAIN_ID"}
    return subprocess.run(
        [sys.executable, "-m", "physis_ros.cli.main", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def processes_of(directory: Path) -> list[str]:
    """Command lines of processes that still name the run's directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(directory) in line and process.pid != os.getpid():
            found.append(line)
    return found


@pytest.mark.timed
def test_the_whole_way_of_the_data(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = physis("demo", "--duration", "8", "--out", str(out), cwd=tmp_path)
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, said
    assert processes_of(out) == []

    report = json.loads((out / "report.json").read_text())
    assert report["chunks"] > 5, report
    for where in ("handoff", "servo"):
        age = report["action_age_ms"][where]
        assert age["n"] > 0
        assert 0 < age["p50"] <= age["p99"] <= age["p999"] <= age["max"] < math.inf
    parts = {name: p["p50"] for name, p in report["parts_ms"].items()}
    assert all(value >= 0 for value in parts.values()), parts
    # Age at hand-off is made of its four parts: the sum of medians stands near the median of sums.
    assert math.isclose(sum(parts.values()), report["action_age_ms"]["handoff"]["p50"], rel_tol=0.5)
    assert report["response_latency_ms"]["p50"] > 0
    assert report["output_interval_ms"]["p50"] > 0
    assert report["rates_hz"]["servo"] > report["rates_hz"]["chunk"] > 0
    assert report["task"]["moved"] and report["task"]["limit_violations"] == 0
    assert report["safety"]["state"] in ("OK", "LIMIT")
    assert (out / "run.png").stat().st_size > 10_000
    assert (out / "camera.mp4").stat().st_size > 1_000
    assert "not a latency" in done.stdout


def test_bad_input_is_one_line_and_starts_nothing(tmp_path: Path) -> None:
    for arguments, said in (
        (("--duration", "0"), "duration: 0.0"),
        (("--seed", "-3"), "seed: -3"),
        (("--set", "engin_node.period_s=1"), "did you mean 'engine_node'"),
        (("--show",), "show: True: there is no screen"),
    ):
        if arguments == ("--show",) and os.environ.get("DISPLAY"):
            continue
        done = physis("demo", *arguments, "--out", str(tmp_path / "no"), cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "no").exists()


def test_a_parameter_that_a_node_refuses_ends_the_demo_with_its_own_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = physis("demo", "--set", "engine_node.periodd_s=0.1", "--out", str(out), cwd=tmp_path)
    assert done.returncode == 2
    assert "periodd_s" in done.stderr and "did you mean 'period_s'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert processes_of(out) == []
