"""One run of the real stack with the simulated arm, from start to report."""
