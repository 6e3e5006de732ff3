"""physis-tiny: a small causal diffusion transformer that turns observations into action chunks."""
