"""A new worker, on any host, takes over the engine's clock: all times are the engine's."""

from __future__ import annotations

import time

from physis_core.cluster.host_clock import Exchange, HostClock, clock_error_s
from physis_core.cluster.messages import Ping, Pong, ShiftClock, ToEngine, ToWorker
from physis_core.cluster.transport import Channel

_CLOCK_QUESTIONS = 8


def set_clock(channel: Channel[ToEngine]) -> bool:
    """Tell a new worker how far its steady clock is ahead of ours. False: it went away.

    Raises:
        BadMessageError: its answer does not decode.
    """
    exchanges = []
    for _ in range(_CLOCK_QUESTIONS):
        asked_s = time.monotonic()
        channel.send(Ping())
        answer = channel.receive()
        if not isinstance(answer, Pong):
            return False
        exchanges.append(Exchange(asked_s=asked_s, remote_s=answer.now_s, heard_s=time.monotonic()))
    return channel.send(ShiftClock(shift_s=clock_error_s(exchanges)))


def agree_on_time(channel: Channel[ToWorker], clock: HostClock) -> bool:
    """Answer the engine until it says what our clock's error is. False: it went away.

    Raises:
        BadMessageError: what it sent does not decode.
    """
    while True:
        message = channel.receive()
        match message:
            case None:
                return False
            case ShiftClock():
                clock.shift(message.shift_s)
                return True
            case Ping():
                channel.send(Pong(now_s=clock.now_s()))
            case _:
                raise AssertionError(f"{type(message).__name__} came before the clock was set")
