"""Constraints on plans, and their meaning for every op."""
