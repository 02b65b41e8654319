"""Strategies: from a problem to a device and a priority per op. One file each, like its paper."""

from loadmaster.strategies.base import Candidate
from loadmaster.strategies.registry import METHODS, Method

__all__ = ["METHODS", "Candidate", "Method"]
