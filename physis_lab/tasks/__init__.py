"""The tasks of the simulated arm: what is asked, how it is judged, and how an expert does it."""

TASKS: tuple[str, ...] = ("follow", "follow_jumps", "reach", "push")
"""Their names; here, so that a launcher knows them without MuJoCo."""
