"""Benchmarks of planner and simulator."""
