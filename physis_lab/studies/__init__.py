"""Studies: what latency costs, noisy against clean KV, what devices give."""
