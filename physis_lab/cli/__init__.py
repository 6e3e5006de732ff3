"""Verbs of `physis` that need the laboratory."""
