"""Collectives and messages of a plan, as one process of its file runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loadmaster.base.units import counted, format_bytes
from loadmaster.plans.plan import Plan
from loadmaster.transforms.added_ops import OWN

#: Number and bytes of collectives, by kind.
Counts = Mapping[str, Sequence[int]]

#: Words for kinds of collectives.
_WORDS = {"all_gather": "all-gather", "all_reduce": "all-reduce", "all_to_all": "all-to-all"}


def priced_collectives(plan: Plan) -> dict[str, tuple[int, int]]:
    """Number and bytes of collectives by kind, on the first device of a plan; of a pipeline, those
    of its messages on all devices. What the optimizer's step gathers is left out; so is the sum of
    the weights of a mean loss, which each process has of its own samples. O(V + E).

    The bytes of one are those of the whole tensor: the largest that it reads or makes.

    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(graph, cluster, target="ddp", optimizer="replicated")
    >>> list(priced_collectives(plan))
    ['all_reduce']
    """
    program, graph = plan.program, plan.program.graph
    if plan.recipe is not None and plan.recipe.micro is not None:
        sent = plan.schedule.transfers.bytes
        return {"send": (len(sent), int(sent.sum()))} if len(sent) else {}
    is_first = np.maximum(program.rank, program.replica) <= 0
    members: dict[str, list[int]] = {}
    for op in np.flatnonzero(graph.is_member & is_first).tolist():
        members.setdefault(graph.collectives[op], []).append(op)
    is_tensor = (graph.src if graph.tensor is None else graph.tensor) >= 0
    into = np.bincount(graph.dst[is_tensor], graph.bytes[is_tensor], graph.n_ops)
    counts: dict[str, tuple[int, int]] = {}
    for label, ops in sorted(members.items()):
        if "updated" not in label and not label.startswith(f"all_reduce/{OWN}"):
            kind = label.partition("/")[0]
            sizes = (into[ops].sum(), graph.output_bytes[ops].sum(), graph.param_bytes[ops].sum())
            number, total = counts.get(kind, (0, 0))
            counts[kind] = number + 1, total + int(max(sizes))
    return counts


def in_words(counts: Counts, *, sized: bool = False) -> str:
    """Collectives by kind: "2 all-gathers (1 KiB), 1 all-reduce (8 B)", or with no sizes."""
    words = [
        counted(number, _WORDS.get(kind, kind.replace("_", "-")))
        + f" ({format_bytes(size)})" * sized
        for kind, (number, size) in sorted(counts.items())
    ]
    return ", ".join(words) or "no collective"
