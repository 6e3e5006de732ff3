"""One worker: its loop, its devices and how they compute a batch."""
