"""The pipeline on a virtual clock."""
