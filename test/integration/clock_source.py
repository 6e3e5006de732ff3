"""A simulator's /clock, in a process of its own: runs, pauses and jumps as it is told.

Arguments: its steps per simulated second (default 100), and simulated seconds per second (default
1). Each line on standard input is one of `jump SECONDS`, `pause`, `resume`; each is answered with a
line on standard output once it is in force.
"""

from __future__ import annotations

import sys
import threading
import time

import rclpy
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock

from physis_ros.node.interfaces import Topic, sensor_data
from physis_ros.node.time_messages import ns_to_time

BEGIN_S = 1000.0


class SimulatedTime:
    """Simulated seconds: `at_s` at the steady instant `since_s`, and on from there unless paused.

    Threads: told by one, read by another; both hold the lock.
    """

    def __init__(self, rate: float) -> None:
        self.lock = threading.Lock()
        self._rate = rate
        self._at_s, self._since_s, self._runs = BEGIN_S, time.monotonic(), True

    def now_s(self) -> float:
        return self._at_s + (self._rate * (time.monotonic() - self._since_s) if self._runs else 0.0)

    def tell(self, words: list[str]) -> None:
        at_s = self.now_s()
        if words[0] == "jump":
            at_s += float(words[1])
        else:
            self._runs = {"pause": False, "resume": True}[words[0]]
        self._at_s, self._since_s = at_s, time.monotonic()


def main() -> int:
    # A signal ends it at once; there is nothing to save.
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("clock_source")
    topic = Topic(name="/clock", type=Clock, qos=sensor_data(1))
    out = node.create_publisher(topic.type, topic.name, topic.qos)
    words = dict(enumerate(sys.argv[1:]))
    hz, rate = float(words.get(0, "100")), float(words.get(1, "1"))
    simulated, end = SimulatedTime(rate), threading.Event()

    def publish() -> None:
        while not end.wait(1.0 / (hz * rate)):
            with simulated.lock:
                out.publish(Clock(clock=ns_to_time(round(simulated.now_s() * 1e9))))

    thread = threading.Thread(target=publish, name="clock")
    thread.start()
    for line in sys.stdin:
        with simulated.lock:
            simulated.tell(line.split())
        print(line.strip(), flush=True)
    end.set()
    thread.join()
    rclpy.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
