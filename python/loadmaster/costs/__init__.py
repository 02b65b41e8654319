"""What ops and transfers cost: seconds, each with its provenance; cost models that learn them."""

from loadmaster.costs.accuracy import Accuracy, Trust, held_out, trust
from loadmaster.costs.adaptive import CostModel, Entry, Join, Move, Update
from loadmaster.costs.links import LinkFit, Links, TransferTimes, fit_links
from loadmaster.costs.roofline import PROVENANCES, Costs, estimate
from loadmaster.costs.standard_evaluation import Regression, sweep

__all__ = [
    "PROVENANCES",
    "Accuracy",
    "CostModel",
    "Costs",
    "Entry",
    "Join",
    "LinkFit",
    "Links",
    "Move",
    "Regression",
    "TransferTimes",
    "Trust",
    "Update",
    "estimate",
    "fit_links",
    "held_out",
    "sweep",
    "trust",
]
