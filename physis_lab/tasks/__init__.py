"""The tasks of the simulated arm: what is asked, how it is judged, and how an expert does it."""
