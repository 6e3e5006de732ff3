"""A world model as a node: commanded joints in, frames out."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
