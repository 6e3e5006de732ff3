"""Nodes that benchmarks add to a stack."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
