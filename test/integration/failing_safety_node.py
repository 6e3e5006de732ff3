"""safety_node with a fault in one of its threads: `failing_safety_node.py loop` and others."""

from __future__ import annotations

import sys
from typing import Any

from physis_ros.node.base import main
from physis_ros.safety.guarded_filter import GuardedFilter
from physis_ros.safety.output import SafetyOutput
from physis_ros.safety.safety_node import SafetyNode

PLACES: dict[str, tuple[type[Any], str]] = {
    "loop": (GuardedFilter, "tick"),
    "sender": (SafetyOutput, "_send_status"),
    "look-ahead": (GuardedFilter, "look_ahead"),
}


class FailingNode(SafetyNode):
    def activate(self) -> None:
        super().activate()
        # What a first acknowledged trajectory would do.
        self._on_acknowledged()


def fail(*_: object) -> None:
    raise RuntimeError("a fault of this test")


if __name__ == "__main__":
    owner, method = PLACES[sys.argv.pop(1)]
    setattr(owner, method, fail)
    sys.exit(main(FailingNode))
