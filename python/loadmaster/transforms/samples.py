"""Samples of a batch, as far as devices can share them out without talking to each other."""

from __future__ import annotations

from loadmaster.base.errors import InputError
from loadmaster.dimensions.coupling import joins_samples
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.graph import OpGraph
from loadmaster.transforms.shares import batch_size

#: Where a graph keeps why its samples cannot be shared out.
_KEPT = "_joined_samples"


def joined_samples(graph: OpGraph) -> str:
    """The reason why parts of the batch, each computed alone, are not the batch; "": they are.

    Found once for each graph, from the arguments of calls; without these, nothing is known against
    it. O(V + E).

    Examples
    --------
    >>> import loadmaster as lm
    >>> joined_samples(lm.read("example:lenet"))
    ''
    """
    known: str | None = vars(graph).get(_KEPT)
    if known is None:
        joins = None if graph.args is None else joins_samples(Dimensions.of(graph))
        known = ""
        if joins is not None:
            op, does = joins
            of = f" of module {graph.modules[op]!r}" if graph.modules[op] else ""
            known = (
                f"the batch is not one of separate samples: op {graph.names[op]!r} "
                f"({graph.kinds[op]}){of} {does}, so parts of the batch do not add up to it. "
                "Methods that exchange what is joined can share it (sharded, jax)"
            )
        vars(graph)[_KEPT] = known
    return known


def samples_to_share(graph: OpGraph) -> int | None:
    """Samples that devices or micro-batches may share out: the batch, or 1 if it is joined.

    None: the graph does not say its batch.
    """
    batch = batch_size(graph)
    return 1 if batch is not None and joined_samples(graph) else batch


def check_samples_apart(graph: OpGraph, before: str = "") -> None:
    """Refuses to share out a batch whose samples are joined, with the reason."""
    if reason := joined_samples(graph):
        raise InputError(f"{before}{reason}")
