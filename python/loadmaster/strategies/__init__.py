"""Strategies: from a problem to a device and a priority per op. One file each, like its paper."""

from loadmaster.judge.assignment import Assignment
from loadmaster.strategies.candidate import Candidate
from loadmaster.strategies.registry import METHODS, Method, strategy

__all__ = ["METHODS", "Assignment", "Candidate", "Method", "strategy"]
