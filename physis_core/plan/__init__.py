"""Offline planning: profile, cost, placement, admission."""
