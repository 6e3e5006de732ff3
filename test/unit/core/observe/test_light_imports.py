"""Robot-side nodes import these modules: a light install must be enough for them."""

from __future__ import annotations

import subprocess
import sys

LIGHT = ("percentiles", "recorder", "report", "result_file", "rowlog", "trace")
HEAVY = ("cv2", "imageio_ffmpeg", "matplotlib", "msgspec", "rich", "torch")


def test_records_and_figures_need_numpy_alone() -> None:
    modules = [f"physis_core.observe.{name}" for name in LIGHT] + ["physis_core.files"]
    program = (
        f"import sys\nfor name in {HEAVY}: sys.modules[name] = None\nimport {', '.join(modules)}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
