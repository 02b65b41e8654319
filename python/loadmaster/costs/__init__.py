"""What ops and transfers cost: seconds, each with its provenance; cost models that learn them."""

from loadmaster.costs.adaptive import CostModel
from loadmaster.costs.roofline import PROVENANCES, Costs, estimate
from loadmaster.costs.sweep import Regression, sweep

__all__ = ["PROVENANCES", "CostModel", "Costs", "Regression", "estimate", "sweep"]
