"""Transforms: from a graph to a graph that does the same work, in more ops or with fewer edges."""

from loadmaster.model.program import Program, Split
from loadmaster.transforms.data_parallel import data_parallel, replicate
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.micro_batches import micro_batches
from loadmaster.transforms.recomputation import recompute
from loadmaster.transforms.shards import shard
from loadmaster.transforms.split import dimensions, split_op
from loadmaster.transforms.transitive import reduce_control
from loadmaster.transforms.weight_streaming import stream_weights

__all__ = [
    "Layout",
    "Program",
    "Split",
    "data_parallel",
    "dimensions",
    "micro_batches",
    "recompute",
    "reduce_control",
    "replicate",
    "shard",
    "split_op",
    "stream_weights",
]
