"""The tape of a program that was made of a recorded graph: replicas, shards, micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.model.program import Program
from loadmaster.running.parallel.micro_batches import micro_batched
from loadmaster.running.parallel.recomputed import recomputed
from loadmaster.running.parallel.replicas import replicated
from loadmaster.running.parallel.sharded import sharded
from loadmaster.running.tape.tape import Tape
from loadmaster.transforms.lowering import Lowering

if TYPE_CHECKING:
    import torch


def transformed(
    program: Program, tape: Tape, inputs: Mapping[int, torch.Tensor] | None = None
) -> Tape:
    """The tape of a program's graph.

    Parameters
    ----------
    program
        Of the tape's graph.
    tape
    inputs
        Inputs and targets that are not those of the recording, by slot.

    Raises
    ------
    InputError
        What no tape runs: ops that are split by themselves; see also :func:`.replicated` and
        :func:`.sharded`.
    """
    if (program.micro >= 0).any():
        return micro_batched(program, tape, inputs, transformed)
    recipe = program.recipe
    if recipe is not None and (program.rank >= 0).any():
        lowering = Lowering.of_recipe(tape.graph, recipe)
        if lowering.recomputation is not None:
            tape = recomputed(lowering.recomputation, tape)
        return sharded(program, tape, lowering, inputs)
    parts = np.flatnonzero(program.parts > 1)
    if len(parts):
        raise InputError(
            f"{program.label(int(parts[0]))}: ops that are split alone do not run; those of a "
            'mesh do (method "sharded")'
        )
    if (program.replica >= 0).any():
        return replicated(program, tape, inputs)
    held = [replace(p, tensor=(inputs or {}).get(p.slot, p.tensor)) for p in tape.placeholders]
    return recomputed(program, replace(tape, placeholders=tuple(held)))
