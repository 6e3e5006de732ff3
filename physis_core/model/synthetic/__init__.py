"""A cheap model with random weights, to try the engine with."""
