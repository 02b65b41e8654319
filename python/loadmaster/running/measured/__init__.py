"""Measured runs, and the loop that learns from them."""
