"""Compiled plans on devices: emulated, threads, processes, GPUs."""
