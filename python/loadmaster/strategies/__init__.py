"""Strategies: from a problem to a device and a priority per op. One file each, like its paper."""

from loadmaster.strategies.base import Candidate, Placement
from loadmaster.strategies.registry import METHODS, Method, strategy

__all__ = ["METHODS", "Candidate", "Method", "Placement", "strategy"]
