"""The wires of other policy servers: a client that stands in for the engine, and our server."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
