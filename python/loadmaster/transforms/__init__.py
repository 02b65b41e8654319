"""Transforms: from a graph to a graph that does the same work in more, smaller ops."""

from loadmaster.transforms.base import Split, Transformed
from loadmaster.transforms.data_parallel import data_parallel, replicate
from loadmaster.transforms.split import dimensions, split_op

__all__ = ["Split", "Transformed", "data_parallel", "dimensions", "replicate", "split_op"]
