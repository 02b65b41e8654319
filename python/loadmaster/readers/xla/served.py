"""The inputs of a program: those with the batch, and of one that trains nothing the parameters.

The program says neither. Of one that trains nothing, the first of these that holds decides:

1. The reader's option ``parameters``: arguments, or arrays in their trees.
2. Paths with the word ``params``, as Flax has them.
3. The batch, which is the first axis of the first output that comes of an input. It is followed
   through the program to the inputs. Arrays that have no part of it are the same for every sample:
   those are parameters, but for what ops read that no rule knows.
4. The first argument, if there are others: there JAX's users have parameters.

The graph's notes say which of the last two it was.

Where inputs differ in their first axis, ``meta`` has the batch: the first axis of the inputs that
is one dimension, of which the others (masks, keys of random numbers) have no part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.reached import reached
from loadmaster.base.text import meant
from loadmaster.base.units import counted
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import Cut
from loadmaster.model.graph import INPUT, OpGraph
from loadmaster.model.shapes import parse_output

#: Element types of weights: floating ones, and small whole numbers of quantised ones.
_STORED = ("f", "bf", "i2", "i4", "i8", "u2", "u4", "u8")

#: A factor of an output of an op: op, output, factor.
_Place = tuple[int, int, int]


def with_parameters(
    document: Mapping[str, Any],
    outputs: Sequence[int],
    parameters: Sequence[str],
    *,
    is_named: bool,
) -> OpGraph:
    """The graph of a document whose inputs are all of the kind ``input``, with its parameters.

    O(V + E).

    Parameters
    ----------
    document : dict
        An opgraph document.
    outputs : sequence of int
        The ops that make what the program returns, in its order.
    parameters : sequence of str
        The option: names of arguments, or paths in their trees. Empty: it is not given.
    is_named : bool
        True if inputs have the names of arguments.

    Raises
    ------
    InputError
        No input has a name that ``parameters`` has.
    """
    graph = OpGraph.from_document(dict(document), document["name"])
    names = {op: graph.names[op] for op in np.flatnonzero(graph.stands_for == INPUT).tolist()}
    if not names:
        return graph
    chosen = _of_option(names, parameters) or _of_word(names)
    note = ""
    batch = _common(graph, names.keys() - set(chosen)) if chosen else None
    if batch is None:
        served, batch = _served(graph, outputs)
        if not chosen:
            chosen, note = _unnamed(graph, names, served, is_named=is_named)
        if _common(graph, names.keys() - set(chosen)) is not None:
            batch = None
    return _with(document, chosen, note, batch)


def with_batch(document: Mapping[str, Any]) -> OpGraph:
    """The graph of a document, with the size of the batch where its inputs differ. O(V + E)."""
    graph = OpGraph.from_document(dict(document), document["name"])
    inputs = np.flatnonzero(graph.stands_for == INPUT).tolist()
    if not inputs or _common(graph, inputs) is not None:
        return graph
    served = [op for op in inputs if not _is_shared(graph.outputs[op])]
    batch = _common(graph, served)
    if batch is None:
        return graph
    dimension = _Dimension(Dimensions.of(graph))
    starts = [start for op in served for start in dimension.first_axis(op)]
    places = reached(starts[:1], dimension.next)
    holders = {op for op, _, _ in places if op in set(inputs)}
    is_one = places.issuperset(starts) and holders == set(served)
    return _with(document, [], "", batch) if is_one else graph


def _is_shared(output: str) -> bool:
    """True for an input that all samples may share: a number, a key of random numbers, or one row.

    >>> _is_shared("u32[2]"), _is_shared("b8[1,1,8,8]"), _is_shared("f32[8,16]")
    (True, True, False)
    """
    dtype, shape = parse_output(output)[0]
    return not shape or shape[0] == 1 or (dtype == "u32" and shape in ((2,), (4,)))


def _with(
    document: Mapping[str, Any], parameters: Sequence[int], note: str, batch: int | None
) -> OpGraph:
    """The graph of a document, with what was found of it."""
    meta = {**document["meta"]}
    meta["assumed"] = [*meta["assumed"], *filter(None, [note])]
    if batch is not None:
        meta["batch"] = batch
    ops = {**document["ops"]}
    ops |= {column: [*ops[column]] for column in ("kind", "param_bytes")}
    for op in parameters:
        ops["kind"][op], ops["param_bytes"][op] = "parameter", ops["output_bytes"][op]
    return OpGraph.from_document({**document, "meta": meta, "ops": ops}, document["name"])


def _of_option(names: Mapping[int, str], parameters: Sequence[str]) -> list[int]:
    chosen: set[int] = set()
    for wanted in parameters:
        those = [op for op, name in names.items() if f"{name}.".startswith(f"{wanted}.")]
        if not those:
            known = dict.fromkeys(name.partition(".")[0] for name in names.values())
            raise InputError(f"parameters: no input is named {wanted!r}{meant(wanted, known)}")
        chosen.update(those)
    return sorted(chosen)


def _of_word(names: Mapping[int, str]) -> list[int]:
    return [op for op, name in names.items() if "params" in name.split(".")]


def _unnamed(
    graph: OpGraph, names: Mapping[int, str], served: Collection[int], *, is_named: bool
) -> tuple[list[int], str]:
    """The parameters where no name says them, and the note on how they are told."""
    stored = [op for op in names if graph.outputs[op].startswith(_STORED)]
    if served:
        chosen = [op for op in stored if op not in served]
        if not chosen:
            return [], "no input is a parameter: all have the batch of what is returned"
        has = counted(len(chosen), "input has", "inputs have")
        return chosen, f"{has} no part of the batch of what is returned: parameters"
    argument = names[stored[0]].partition(".")[0] if stored and is_named else None
    chosen = [op for op in stored if names[op].partition(".")[0] == argument]
    if chosen and len(chosen) < len(names):
        return chosen, (
            f"{argument}, the first argument, is taken for parameters: "
            "parameters= (--parameters) says others"
        )
    return [], (
        "which inputs are parameters is not written: all count as inputs; "
        "parameters= (--parameters) says them"
    )


def _common(graph: OpGraph, inputs: Collection[int]) -> int | None:
    """The size of the first axis that inputs have in common; None: there is none."""
    shapes = [parse_output(graph.outputs[op])[0][1] for op in inputs]
    sizes = {shape[0] for shape in shapes if shape}
    return sizes.pop() if len(sizes) == 1 else None


def _served(graph: OpGraph, outputs: Sequence[int]) -> tuple[set[int], int | None]:
    """The inputs that have, or may have, the batch; its size where it is their first axis."""
    dimension = _Dimension(Dimensions.of(graph))
    for op in outputs:
        if graph.placeholder[op]:  # State that is returned as it came.
            continue
        for start in dimension.first_axis(op):
            places = reached([start], dimension.next)
            holders = [place for place in places if graph.stands_for[place[0]] == INPUT]
            if holders:
                sizes = {s for place in holders if (s := dimension.first_size(place)) is not None}
                served = {op for op, _, _ in holders} | dimension.lost()
                return served, sizes.pop() if len(sizes) == 1 else None
    return set(), None


class _Dimension:
    """Factors of outputs that are one dimension, from op to op."""

    def __init__(self, dimensions: Dimensions) -> None:
        self.dimensions, self.graph = dimensions, dimensions.graph
        self.form_of = dimensions.form_of.tolist()
        self.first, self.root = dimensions.first.tolist(), dimensions.root.tolist()
        self.output, self.reader = dimensions.output.tolist(), dimensions.reader.tolist()
        #: The arguments that each op's outputs are.
        self.readers: dict[int, list[int]] = {}
        for argument, root in enumerate(self.root):
            self.readers.setdefault(root, []).append(argument)

    def next(self, place: _Place) -> Iterator[_Place]:
        """The factors that its op, or one that reads it, has in one dimension with a place."""
        op, output, factor = place
        for cut in self._cuts(op):
            if cut.outputs[output : output + 1] == (factor,):
                yield from self._of_cut(op, cut)
        for argument in self.readers.get(op, ()):
            if self.output[argument] == output:
                reader = self.reader[argument]
                for cut in self._cuts(reader):
                    if self.dimensions.needed(argument, cut) == factor:
                        yield from self._of_cut(reader, cut)

    def _cuts(self, op: int) -> Sequence[Cut]:
        form = self.form_of[op]
        return self.dimensions.forms[form].cuts if form >= 0 else ()

    def _of_cut(self, op: int, cut: Cut) -> Iterator[_Place]:
        for output, spec in enumerate(cut.outputs):
            if spec >= 0:
                yield op, output, spec
        for argument in range(self.first[op], self.first[op + 1]):
            spec = self.dimensions.needed(argument, cut)
            if spec >= 0:
                yield self.root[argument], self.output[argument], spec

    def lost(self) -> set[int]:
        """The inputs that an op without a rule reads: nobody knows what is one dimension there."""
        unknown = self.dimensions.unknown
        return {
            op
            for op, arguments in self.readers.items()
            if self.graph.stands_for[op] == INPUT
            and any(self.graph.kinds[self.reader[argument]] in unknown for argument in arguments)
        }

    def first_axis(self, op: int) -> Iterator[_Place]:
        """The first factor of an output; of a view, that of the op whose tensor it shows."""
        output = 0
        if self.graph.view[op] and self.first[op] < self.first[op + 1]:
            argument = self.first[op]
            op, output = self.root[argument], self.output[argument]
        form = self.form_of[op]
        if form >= 0 and self.dimensions.forms[form].outputs[output]:
            yield op, output, 0

    def first_size(self, place: _Place) -> int | None:
        """The size of the first axis of an input, if the place is all of it."""
        op, output, factor = place
        axis, size = self.dimensions.forms[self.form_of[op]].outputs[output][factor]
        shape = parse_output(self.graph.outputs[op])[0][1] or (0,)
        return size if axis == 0 and size == shape[0] else None
