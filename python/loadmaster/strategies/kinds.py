"""Kinds of plans, the request that makes one of a kind, and replicas in a few words.

A kind is read off the program, whatever method made it.

Devices that share nothing but the batch are replicas, with their optimizer, their gradients and
their parameters whole or in parts (ZeRO, FSDP). So a plan of replicas has one kind and one name,
whether labels of ops made it or copies of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from loadmaster.base.units import counted
from loadmaster.model.graph import PARAMETER
from loadmaster.model.program import COMPUTE, Program
from loadmaster.transforms.shares import only_gradients


class Kind(StrEnum):
    """A kind of plans that are judged beside each other. Its text stands in documents."""

    ONE_DEVICE = "one device"
    WHOLE_OPS = "whole ops"
    REPLICAS = "replicas"
    SHARDS = "shards"
    PIPELINES = "pipelines"
    #: Whole models that take batches in turn.
    IN_TURN = "whole models in turn"
    SPLIT_OPS = "split ops"


@dataclass(frozen=True)
class Request:
    """Arguments of :func:`loadmaster.place` that make a plan: a method, and options by name."""

    method: str
    options: tuple[tuple[str, Any], ...] = ()


#: The kinds that ``auto`` judges beside each other, and what asks for a plan of one alone.
REQUESTS = {
    Kind.ONE_DEVICE: Request("single"),
    Kind.WHOLE_OPS: Request("auto", (("split", "none"),)),
    Kind.REPLICAS: Request("data-parallel"),
    Kind.SHARDS: Request("sharded"),
    Kind.PIPELINES: Request("pipeline"),
}


def kind_of(program: Program, devices: int) -> Kind:
    """The kind of plans that a program on so many devices is of. O(V).

    >>> import loadmaster as lm
    >>> graph = lm.read("example:vgg19")
    >>> kind_of(lm.transforms.replicate(graph, 2), 2), kind_of(Program.of(graph), 2)
    (<Kind.REPLICAS: 'replicas'>, <Kind.WHOLE_OPS: 'whole ops'>)
    >>> labels = {"x": {"**": "batch"}}
    >>> print(kind_of(lm.transforms.shard(graph, lm.Recipe({"x": 2}, labels)), 2))
    replicas
    """
    if program.recipe is not None and program.recipe.micro is not None:
        return Kind.PIPELINES
    if program.batches > 1:
        return Kind.IN_TURN
    if (program.rank >= 0).any():
        return Kind.REPLICAS if shares_only_the_batch(program) else Kind.SHARDS
    if int(program.replica.max(initial=-1)) > 0:
        return Kind.REPLICAS
    if not program.is_plain:
        return Kind.SPLIT_OPS
    return Kind.ONE_DEVICE if devices == 1 else Kind.WHOLE_OPS


def shares_only_the_batch(program: Program) -> bool:
    """True if the devices of a mesh share the batch, and no other dimension of any op. O(V).

    Each has its samples' part of all work that depends on the batch. Parameters and their updates
    may be in parts, and what adds losses up may work on partial sums.
    """
    graph, source = program.graph, program.source
    roles = source.roles
    of_batch = roles.many & ~only_gradients(source, roles)
    works = (program.role == COMPUTE) & ~graph.placeholder & ~graph.view & of_batch[program.serves]
    is_whole = (program.share == 1.0) & (source.flops[program.serves] > 0)
    is_other = ((program.parts > 1) & (program.share < 1.0)) | is_whole
    return int(program.replica.max(initial=-1)) > 0 and not bool((works & is_other).any())


def replicas_in_words(program: Program) -> str:
    """Replicas in a few words: how many, and how they add up gradients. O(V).

    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> replicas_in_words(lm.transforms.replicate(graph, 2))
    '2 replicas, gradients all-reduced'
    >>> sharded = lm.transforms.replicate(graph, 4, aggregation="reduce-scatter")
    >>> replicas_in_words(sharded)
    '4 replicas, optimizer sharded flat'
    """
    replicas = int(program.replica.max(initial=-1)) + 1
    summing = _summing(program, replicas)
    return counted(replicas, "replica") + (f", {summing}" if summing else "")


def _summing(program: Program, replicas: int) -> str:
    """The sum of gradients and the state of so many replicas, in words; empty: there is no sum."""
    graph, source = program.graph, program.source
    if not source.updates.any():
        return ""
    if not graph.is_member.any():
        return "parameter servers" if program.own.any() else ""
    updates = graph.updates & ~program.own & ~graph.view & ~graph.placeholder
    whole = source.updates & ~source.view & ~source.placeholder
    copies = int(updates.sum()) / max(int(whole.sum()), 1)
    is_part = program.share[updates] < 1
    if _is_mostly_in_parts(program, replicas):
        return "parameters sharded"
    if is_part.mean() > 0.5:
        return "optimizer sharded flat"
    return (
        "optimizer sharded by parameters"
        if copies < (replicas + 1) / 2
        else "gradients all-reduced"
    )


def _is_mostly_in_parts(program: Program, replicas: int) -> bool:
    """True if replicas have fewer bytes of parameters than if half of them were whole on each."""

    def held(bytes_: np.ndarray, of: np.ndarray) -> float:
        return float(bytes_[of].sum(dtype=np.float64))

    graph, source = program.graph, program.source
    once = held(source.param_bytes, source.stands_for == PARAMETER)
    return held(graph.param_bytes, graph.stands_for == PARAMETER) < once * (replicas + 1) / 2
