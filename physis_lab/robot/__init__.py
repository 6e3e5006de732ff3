"""The simulated arm as a robot, and nodes that record and show a run."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
