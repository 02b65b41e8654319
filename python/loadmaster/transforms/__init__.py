"""Transforms: from a graph to a graph that does the same work, in more ops or with fewer edges."""

from loadmaster.transforms.base import Split, Transformed
from loadmaster.transforms.data_parallel import data_parallel, replicate
from loadmaster.transforms.split import dimensions, split_op
from loadmaster.transforms.transitive import reduce_control

__all__ = [
    "Split",
    "Transformed",
    "data_parallel",
    "dimensions",
    "reduce_control",
    "replicate",
    "split_op",
]
