"""The action timeline: chunks in, trajectories out, with the age of each point."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
