"""Targets: a file for each system that runs plans, with how a plan is made that it can run."""
