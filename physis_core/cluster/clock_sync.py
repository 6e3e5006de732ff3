"""Front and a new worker, on any host, agree on what time it is: all times are the front's."""

from __future__ import annotations

import time

from physis_core.cluster.host_clock import Exchange, HostClock, clock_error_s
from physis_core.cluster.messages import Channel, Message

_CLOCK_QUESTIONS = 8


def set_clock(channel: Channel) -> bool:
    """Tell a new worker how far its steady clock is ahead of ours. False: it went away."""
    exchanges = []
    for _ in range(_CLOCK_QUESTIONS):
        asked_s = time.monotonic()
        channel.send(Message("ping", {}))
        answer = channel.receive()
        if answer is None or answer.kind != "pong":
            return False
        exchanges.append(
            Exchange(asked_s=asked_s, remote_s=answer.fields["now_s"], heard_s=time.monotonic())
        )
    return channel.send(Message("clock", {"shift_s": clock_error_s(exchanges)}))


def agree_on_time(channel: Channel, clock: HostClock) -> bool:
    """Answer the front's questions until it says what our clock's error is. False: it went away."""
    while True:
        message = channel.receive()
        if message is None:
            return False
        if message.kind == "clock":
            clock.shift(message.fields["shift_s"])
            return True
        assert message.kind == "ping", message.kind
        channel.send(Message("pong", {"now_s": clock.now_s()}))
