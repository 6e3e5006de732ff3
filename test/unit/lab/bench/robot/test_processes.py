import os

from physis_lab.bench.robot.processes import group_cpu_s


def test_processor_time_of_a_group_grows_with_work():
    group = os.getpgid(0)
    before_s = group_cpu_s(group)
    while group_cpu_s(group) < before_s + 0.05:
        sum(range(100_000))
    assert group_cpu_s(2**22 + 1) == 0.0
