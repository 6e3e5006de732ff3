"""The test process speaks to this machine alone, with the stack's own transports.

Set before any test, not for some: Fast DDS reads its profile once, when a process makes its first
node.
"""

import os

from hypothesis import settings

from physis_lab.session.session import loopback_environment
from physis_ros.node.domain import choose

for _name, _value in loopback_environment(0).items():
    if _name != "ROS_DOMAIN_ID":
        os.environ[_name] = _value

if "PYTEST_XDIST_WORKER" in os.environ:
    # Unit tests that run side by side must not meet in one domain.
    os.environ["ROS_DOMAIN_ID"] = str(choose({}))

# Property tests judge results. Hypothesis's limit of 200 ms an example fails on a busy machine.
settings.register_profile("physis", deadline=None)
settings.load_profile("physis")
