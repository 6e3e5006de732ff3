"""Recorder, percentiles, traces, reports and their files."""
