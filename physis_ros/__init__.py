"""The ROS 2 side: observations in, action chunks and trajectories out, safety beside it.

The message classes `physis_ros.msg` and `physis_ros.srv` are generated into the environment, while
the modules here may be used straight from a source tree: both directories are one package.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
