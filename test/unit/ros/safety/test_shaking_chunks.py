"""Chunks that want the arm now here, now there: how far does the plan run ahead of the robot?

Buffer and safety filter on one virtual clock, the buffer following the commanded state as
buffer_node does. Safety itself stops a robot that is measured too far from where it is commanded
(test_safety_filter); here nothing must come near that.
"""

import numpy as np
import pytest
from test_late_messages import HOME, LIMITS, World

from physis_ros.safety.types import SafetyConfig
from physis_ros.timeline.robot_state import RobotState

COMMANDED_S = 0.02
STEPS = 8


@pytest.mark.parametrize("size_rad", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("every_s", [0.1, 0.4])
def test_the_plan_does_not_run_away_from_the_robot(size_rad, every_s):
    world, place = World(np.random.default_rng(0)), RobotState(LIMITS.names)
    side, furthest_rad, begun_s = 1.0, 0.0, world.now_s
    due_s = begun_s
    while world.now_s < begun_s + 3.0:
        if world.now_s >= due_s:
            due_s += every_s
            side = -side
            world.chunk(np.tile(HOME + side * size_rad, (STEPS, 1)))
        world.run(COMMANDED_S)
        position, velocity = world.filter.commanded(world.now)
        planned = world.timeline.point(world.now_ns)
        ahead = np.abs(planned.position - world.states[-1].position)
        furthest_rad = max(furthest_rad, float(ahead.max()))
        if place.differs_from_plan(planned.position, planned.velocity, position, velocity):
            place.rebased()
            world.timeline.rebase(position, velocity, world.now_ns, keep_newest=True)
    assert world.filter.counts.limited > 0
    assert 0.0 < furthest_rad < SafetyConfig().tracking_tolerance
    world.assert_within_limits()
