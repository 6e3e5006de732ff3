"""The safety controller: judges each command, brakes and stops. Imports no torch."""

from physis_ros.node.startup import hold_interrupts

hold_interrupts()
