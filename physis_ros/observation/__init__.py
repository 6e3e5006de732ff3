"""From camera and joint-state topics to one observation: pairing by time, resizing, the node."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
