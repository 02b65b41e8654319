"""Inputs and instances of other planners and schedulers."""
