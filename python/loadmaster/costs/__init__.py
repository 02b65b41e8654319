"""What ops cost: seconds per op and device type, each with its provenance."""

from loadmaster.costs.roofline import PROVENANCES, Costs, estimate

__all__ = ["PROVENANCES", "Costs", "estimate"]
