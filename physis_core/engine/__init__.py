"""The front: streams in, finished chunks out, recovery after a loss."""
