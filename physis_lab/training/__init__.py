"""Training of physis-tiny and its fast evaluation in closed loop."""
