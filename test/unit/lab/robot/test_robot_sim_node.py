"""The node does not let its process exit while one of its threads still renders."""

from __future__ import annotations

import threading

from physis_lab.robot.robot_sim_node import wait_for_end


def test_a_thread_that_is_slow_to_end_is_waited_for() -> None:
    end = threading.Event()
    camera = threading.Thread(target=end.wait, name="camera")
    camera.start()
    warnings: list[str] = []

    def warn(line: str) -> None:
        warnings.append(line)
        if len(warnings) == 3:
            end.set()

    wait_for_end([camera], warn, every_s=0.01)
    assert not camera.is_alive()
    assert set(warnings) == {"waiting for the camera thread to end"}
