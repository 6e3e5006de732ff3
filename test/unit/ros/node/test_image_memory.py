"""Memory of large blocks stays in the process."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource, sys
from physis_ros.node.image_memory import keep_image_memory
if sys.argv[1] == "keep":
    assert keep_image_memory()
blocks = [bytearray(1_000_000) for _ in range(4)]
del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    blocks = [bytearray(1_000_000) for _ in range(4)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", CODE, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_blocks_of_an_images_size_are_used_again() -> None:
    assert faults("keep") < 100
    assert faults("as it is") > 1000
