"""Baselines that only choose devices."""
