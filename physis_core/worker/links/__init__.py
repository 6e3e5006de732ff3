"""Two-ended links between neighbouring stages: in process, gloo, NCCL."""
