"""Wan 2.x as a staged model, from diffusers' transformer blocks with a rolling KV window."""
