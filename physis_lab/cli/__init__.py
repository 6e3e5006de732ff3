"""Verbs of `physis` that need physis_lab."""
