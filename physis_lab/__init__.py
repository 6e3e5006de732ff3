"""The laboratory: the simulated arm, tasks, training, evaluation, studies and benchmarks.

Nothing here is needed to run a robot.
"""
