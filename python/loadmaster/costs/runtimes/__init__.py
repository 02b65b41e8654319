"""Runtimes: which ops are one kernel, and who waits for launches."""
