"""What one stage computes: the staged-model contract, KV windows, RoPE, and the model families."""
