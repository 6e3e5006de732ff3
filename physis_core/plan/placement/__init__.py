"""Which device holds which virtual rank: demands, grouping, search."""
