"""Shards: the program of a lowering, with the ops of every device of a mesh and the collectives.

Every op has a copy on each device, but for an op that one device of an axis owns. A copy does its
part of the op on its parts of tensors. Names of copies end in ``@d0``, ``@d1``, ...: the device of
the mesh, row-major. The lowering (:mod:`.lowering`) says which collectives, sums and slices are
added, and where.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import COLLECTIVE, SLICE, Program, user_roles
from loadmaster.model.recipe import Recipe
from loadmaster.transforms.added_ops import AddedOps, Members, converting, slicing, summing
from loadmaster.transforms.base import build
from loadmaster.transforms.copied_graph import CopiedGraph
from loadmaster.transforms.copy_texts import CopyTexts
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.lowering import Lowering
from loadmaster.transforms.shard_amounts import amounts_by_arguments, amounts_of_copies
from loadmaster.transforms.shares import Amounts
from loadmaster.transforms.ways import ReadEdges

Ints = NDArray[np.int64]


def shard(graph: OpGraph, how: Recipe | Layout, modules: Sequence[str] = ()) -> Program:
    """The graph as a recipe or a layout has it run. O(k (V + E)), and sorting.

    Parameters
    ----------
    graph : OpGraph
    how : Recipe or Layout
        Nothing may be left to a solver in it.
    modules : sequence of str
        Patterns of modules whose activations are recomputed in the backward pass
        (:func:`.recomputation.recompute`), beside those of a recipe. An op that runs a second time
        is shared as it is the first time.

    Returns
    -------
    Program
        It has the recipe. Its ``rank`` is the device of the mesh of each op, ``share`` the part
        that the op does of its origin.
        ``replica`` is the op's place on the axes on which ops are cut by the batch; -1: there are
        none. ``part`` and ``parts`` count what is cut otherwise.

    Raises
    ------
    InputError
        What :class:`Layout` refuses; a line of the recipe that means nothing in the graph.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:lenet")
    >>> recipe = lm.Recipe({"tp": 2}, {"tp": {"m.7 aten.addmm.default": "column"}})
    >>> program = shard(graph, recipe)
    >>> program.share[program.parts_of(graph.index("addmm"))].tolist()
    [0.5, 0.5]
    """
    if isinstance(how, Recipe):
        lowering = Lowering.of_recipe(graph, how, modules)
        return replace(Expansion.of(lowering).of_user, recipe=how)
    return Expansion.of(Lowering.recomputing(how, modules)).of_user


@dataclass(frozen=True, eq=False)
class CopyColumns:
    """Columns of the copies of ops.

    Attributes
    ----------
    mark : str
        The name of a copy ends in ``@``, this and the number of its device.
    amounts : Amounts
        The work and the bytes that copies have.
    share : float64 [n_ops, k]
        Part of each op that each device does.
    """

    mark: str
    amounts: Amounts
    share: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Expansion:
    """The program of a lowering, and where the ops of the lowering are in it.

    Attributes
    ----------
    lowering : Lowering
    program : Program
        Of the layout's graph.
    copies : int64 [k, n_ops]
        The copy of each op on each device; -1: the device has none.
    members : int64 [k, n_steps]
        The op that takes part for each device in each step of the conversions; -1: the device has
        nothing of it.
    sums : int64 [n_sums, k]
        The op that takes part for each device in each sum of parts.
    slices : int64 [n_halos, k]
        The op with which each device cuts out each halo; -1: it sends none.
    """

    lowering: Lowering
    program: Program
    copies: Ints
    members: Ints
    sums: Ints
    slices: Ints

    @classmethod
    def of(cls, lowering: Lowering, copied: CopyColumns | None = None) -> Expansion:
        """The program of a lowering. O(k (V + E)), and sorting.

        Without columns of copies, these follow from the arguments of ops.
        """
        layout = lowering.layout
        if copied is None:
            copied = CopyColumns("d", amounts_by_arguments(layout), layout.share)
        graph, k = layout.graph, layout.mesh.size
        members = Members(lowering, CopiedGraph(layout))
        collectives = converting(members)
        with_sums = collectives.then(summing(members, collectives))
        added = with_sums.then(slicing(members, with_sums))
        links = ReadEdges()
        for row in added.links:
            links.add(*row)
        if not (taken := set(added.stems)).isdisjoint(graph.names):
            name = min(taken.intersection(graph.names))
            raise InputError(
                f"op {name!r}: a collective, or a slice, of the program needs this name"
            )
        texts = CopyTexts(graph, added.stems, copied.mark)
        columns = texts.columns()
        core, serves, device, which = fast.expand(
            graph._core,
            columns["name"],
            k,
            amounts_of_copies(lowering, copied.amounts),
            _columns_of(added.ops),
            links.columns(k * members.copies.stride),
        )
        texts.fill(serves, device, np.append(added.ops.stem, -1)[which])
        is_copy = which < 0
        role = user_roles(graph)[serves]
        kind = np.append(added.ops.kind, -1)[which]
        role[~is_copy] = np.where(kind[~is_copy] >= 0, COLLECTIVE, SLICE)
        replica, part, parts = _parts(layout, serves, device, is_copy)
        program = build(
            graph,
            core,
            columns,
            serves=serves,
            share=np.where(is_copy, copied.share[serves, device], 1.0),
            replica=replica,
            part=part,
            parts=parts,
            role=role,
            rank=device,
        )
        program = replace(program, notes=(*program.notes, *_notes(layout)))
        copies = np.full((k, graph.n_ops), -1, dtype=np.int64)
        copies[device[is_copy], serves[is_copy]] = np.flatnonzero(is_copy)
        # The last place is of ops that there are none of: -1 counts from the end.
        at = np.full(len(added.ops) + 1, -1, dtype=np.int64)
        at[which[~is_copy]] = np.flatnonzero(~is_copy)
        first, n_sums = len(collectives.ops), len(lowering.sums)
        sums = first + np.arange(n_sums * k).reshape(n_sums, k)
        sends = lowering.halos.receiver >= 0
        slices = np.full(sends.shape, len(added.ops))
        slices[sends] = len(with_sums.ops) + np.arange(int(sends.sum()))
        return cls(lowering, program, copies, at[members.number], at[sums], at[slices])

    @property
    def of_user(self) -> Program:
        """The program, as one of the user's graph: what is recomputed is part of it."""
        again = self.lowering.recomputation
        return self.program if again is None else again.then(self.program)


def _columns_of(ops: AddedOps) -> fast._Added:
    """The columns of added ops as :func:`loadmaster.fast.expand` takes them."""
    # Collectives are numbered in the order of their members.
    number = np.unique(ops.stem, return_inverse=True)[1]
    nothing = np.zeros(len(ops), dtype=np.uint64)
    columns: fast._Added = {
        "place": ops.place,
        "is_before": ops.is_before,
        "serves": ops.serves,
        "device": ops.device,
        "collective": np.where(ops.kind >= 0, number, -1),
        "kind": np.maximum(ops.kind, 0),
        "flops": nothing,
        "accessed": np.where(ops.kind >= 0, nothing, 2 * ops.output),
        "output": ops.output,
    }
    if (ops.runs > 1).any():
        columns["runs"] = ops.runs
    return columns


def _parts(
    layout: Layout, serves: NDArray[np.int32], device: NDArray[np.int32], is_copy: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Replica, part and number of parts of each op."""
    of_batch = layout.is_batch
    axes = [bool(row.any()) for row in of_batch]
    replica, part = np.zeros(len(serves), dtype=np.int32), np.zeros(len(serves), dtype=np.int32)
    parts = np.ones(len(serves), dtype=np.int32)
    for axis, size in enumerate(layout.mesh.shape):
        place = layout.ways.places[axis][device]
        if axes[axis]:
            replica = replica * size + place
        is_cut = (layout.labels[axis] > 0) & ~of_batch[axis] & ~layout.graph.view
        cut = is_copy & is_cut[serves]
        part = np.where(cut, part * size + place, part)
        parts = np.where(cut, parts * size, parts)
    return np.where(any(axes), replica, -1).astype(np.int32), part, parts


def _notes(layout: Layout) -> list[str]:
    """The load of experts that is assumed, where devices share them."""
    axes = [
        name
        for name, cut in zip(layout.mesh.names, layout.experts_cut, strict=True)
        if cut[layout.graph.flops > 0].any()
    ]
    if not axes:
        return []
    evenly = "" if layout.expert_imbalance != 1.0 else ": tokens are taken to be spread evenly"
    return [
        f"experts are shared on {' and '.join(axes)}; the busiest device does "
        f"{layout.expert_imbalance:g} times its fair share of their work "
        f"(expert_imbalance){evenly}"
    ]
