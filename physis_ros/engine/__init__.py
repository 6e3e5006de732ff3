"""The engine as a node: a stream for each robot, action chunks out."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
