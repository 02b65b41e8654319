"""Strategies that place groups of ops, not single ops."""
