"""Costs of ops and transfers: seconds, each with its provenance; cost models that learn them."""

from loadmaster.costs.accuracy import Accuracy, Trust, held_out, trust
from loadmaster.costs.adaptive import CostModel, Join, Update
from loadmaster.costs.entry import Entry
from loadmaster.costs.links import LinkFit, Links, fit_links
from loadmaster.costs.moves import Move
from loadmaster.costs.roofline import PROVENANCES, Costs, estimate
from loadmaster.costs.standard_evaluation import Regression, sweep
from loadmaster.costs.transfers import TransferTimes

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
