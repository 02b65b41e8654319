"""Labels of a forward pass under parallel styles of modules: those of ops follow from those of
parameters.

``torch.distributed.tensor.parallel`` cuts ``nn.Linear`` by its columns or rows and ``nn.Embedding``
by its entries, has what lies between cut by tokens (*sequence parallel*), and turns one spec into
another only where a module begins or ends. What a module does not say works on the specs that it is
given. So the labels of the forward pass follow from those of the parameters, op by op, in order.

Tensors that are cut by tokens are DTensors between modules, so that code which reads their sizes
finds those of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np

from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE, Form
from loadmaster.model.graph import PARAMETER
from loadmaster.model.module_paths import alike
from loadmaster.model.shapes import parse_output
from loadmaster.strategies.sharding.structure import Structure

#: Cuts of a module's weight, and other treatments of a module.
COLUMNS, ROWS, SEQUENCE, OUTPUT = "columns", "rows", "sequence", "output"

#: Outputs that a module may be told to give, beside its own.
WHOLE, TOKENS = "whole", "tokens"

#: Kinds of a loss over classes that are shared out, as ``loss_parallel`` has it.
_LOSS = ("log_softmax", "nll_loss")

#: Kinds of ops of nn.Linear and nn.Embedding: the modules that have styles.
_PRODUCTS = frozenset({"addmm", "mm", "linear", "matmul", "embedding"})

#: Views that are called with sizes.
_SIZED = ("view", "reshape", "expand")

#: Most rounds in which modules are told what to give.
_ROUNDS = 40


@dataclass(frozen=True)
class Style:
    """The style of a module.

    Attributes
    ----------
    kind : str
        Its weight by :data:`COLUMNS` or :data:`ROWS`; :data:`SEQUENCE`: its input is cut by tokens
        and its parameters are whole, and what it gives may be turned; :data:`OUTPUT`: only what it
        gives is turned.
    takes, gives : int or None
        The axis by which its input, or what it made, and its output is cut; -1: the last one; None:
        whole.
    parts : int
        How many products are one fused product: rows of the weight are to be interleaved.
    is_local : bool
        Whether what it gives is a plain tensor, the device's own part.
    """

    kind: str
    takes: int | None = None
    gives: int | None = None
    parts: int = 1
    is_local: bool = True


@dataclass(frozen=True, eq=False)
class Styled:
    """The forward pass of a model whose modules have styles.

    Attributes
    ----------
    column : dict of int to int
        Which of its labels each node of the forward pass has.
    styles : dict of str to Style
        By module.
    reasons : dict of str to str
        What styles cannot say, by module path; empty for the model itself.
    loss_parallel : bool
        Whether the classes of the loss are shared out.
    lies, before : mapping of (int, int) to int
        The specs of outputs of nodes: as others read them, and before a module turned them.
    on_dtensors : set of str
        Modules whose weight is cut, and whose input is a DTensor as it comes.
    """

    column: dict[int, int]
    styles: dict[str, Style]
    reasons: dict[str, str]
    loss_parallel: bool = False
    lies: Mapping[tuple[int, int], int] = field(default_factory=dict)
    before: Mapping[tuple[int, int], int] = field(default_factory=dict)
    on_dtensors: frozenset[str] = frozenset()


#: Attribute in which a structure keeps its forward passes.
_KEPT = "_forward_passes"


@dataclass
class _StyleWalk:
    """Facts on the forward pass once it was walked over."""

    specs: Mapping[int, int]
    sequence: bool
    pinned: dict[str, str]
    have: dict[tuple[int, int], int] = field(default_factory=dict)
    result: dict[tuple[int, int], int] = field(default_factory=dict)
    tokens: set[tuple[int, int]] = field(default_factory=set)
    column: dict[int, int] = field(default_factory=dict)
    products: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    loss_parallel: bool = False
    chosen: dict[int, int] | None = None

    def spec(self, parameter: int) -> int:
        """The spec of a parameter."""
        specs = self.specs if self.chosen is None else self.chosen
        return specs.get(parameter, REPLICATE)


class Forward:
    """The forward pass of a labelled graph, as modules see it.

    Parameters
    ----------
    structure : Structure
    size : int
        Number of devices that share. What they share is a multiple of it.
    """

    def __init__(self, structure: Structure, size: int) -> None:
        self.structure, self.size = structure, size
        graph, ops = structure.graph, structure.op.tolist()
        self.module = [graph.modules[op] for op in ops]
        self.kind = [graph.kinds[op] for op in ops]
        is_forward = np.array([graph.phases[op] in ("", "f") for op in ops], dtype=bool)
        runs = is_forward & ~structure.in_update & (structure.stands_for < 0)
        self.nodes: list[int] = np.flatnonzero(runs).tolist()
        of_gradients = ~is_forward & ~structure.in_update & (structure.stands_for < 0)
        self.backward: list[int] = np.flatnonzero(of_gradients).tolist()
        self._is_parameter: list[bool] = (structure.stands_for == PARAMETER).tolist()
        self.parameters = [node for node, is_one in enumerate(self._is_parameter) if is_one]
        self._way: list[int] = structure.way.tolist()
        a = structure.arguments
        order = np.argsort(a.reader, kind="stable")
        first = np.searchsorted(a.reader[order], np.arange(structure.n + 1)).tolist()
        self._rows = [order[i:j].tolist() for i, j in pairwise(first)]
        self._last = {self.module[node]: node for node in self.nodes}
        self._of_module: dict[str, list[int]] = {}
        for node in self.nodes:
            self._of_module.setdefault(self.module[node], []).append(node)
        self.like = self._first_alike()
        self._read = {node: self.roots(node) for node in self.nodes}
        self._is_weight, self._weights = self._of_weights()
        # What is asked again and again, whatever is tried: found once, for the first node alike.
        self._wanted: dict[tuple[int, int], list[int]] = {}
        self._given: dict[tuple[int, int], list[int]] = {}
        self._tokens: dict[int, int | None] = {}
        self._even: dict[int, list[int]] = {}
        self._by_weights: dict[tuple[int, tuple[int, ...], tuple[bool, ...]], int | None] = {}
        self._as_given: dict[tuple[int, tuple[int, ...]], int | None] = {}
        self._styled: dict[tuple[frozenset[tuple[int, int]], bool], Styled] = {}
        paths = set(graph.modules)
        self._parents = {m.rsplit(".", i)[0] for m in paths for i in range(1, m.count(".") + 1)}

    @classmethod
    def of(cls, structure: Structure, size: int) -> Forward:
        """That of a structure for so many devices, made once for each structure."""
        known: dict[int, Forward] = vars(structure).setdefault(_KEPT, {})
        if size not in known:
            known[size] = cls(structure, size)
        return known[size]

    def columns_then_rows(self) -> dict[int, int]:
        """The factors by which parameters are cut, by node, if every layer is: by rows where its
        input is cut, else by columns, by heads if it has any; tables by their entries.
        """
        walk = _StyleWalk({}, False, {}, chosen={})
        for node in self.nodes:
            self._label(walk, node)
        assert walk.chosen is not None, "they are chosen"
        return walk.chosen

    def styled(self, specs: Mapping[int, int], *, sequence: bool = False) -> Styled:
        """Labels and styles.

        Parameters
        ----------
        specs : mapping of int to int
            The factor by which parameters are cut, by node; what is missing is whole.
        sequence : bool
            Whether what rows make is cut by tokens, where that can be said.
        """
        key = frozenset(specs.items()), sequence
        if key not in self._styled:
            self._styled[key] = self._walked(specs, sequence)
        return self._styled[key]

    def _walked(self, specs: Mapping[int, int], sequence: bool) -> Styled:
        """Labels and styles, once modules are told what they have to be."""
        pinned: dict[str, str] = {}
        for _ in range(_ROUNDS):
            before = dict(pinned)
            walk = _StyleWalk(specs, sequence, pinned)
            for node in self.nodes:
                self._label(walk, node)
            if pinned == before:
                break
        else:
            walk.reasons[""] = "what modules are told to give does not settle"
        styles = dict(self._styles(walk))
        of = self._on_dtensors(walk, styles)
        reasons, is_parallel = walk.reasons, walk.loss_parallel
        return Styled(walk.column, styles, reasons, is_parallel, walk.have, walk.result, of)

    def _on_dtensors(self, walk: _StyleWalk, styles: Mapping[str, Style]) -> frozenset[str]:
        """The modules whose weight is cut, and whose input is a DTensor as it comes."""
        dtensors, readers = set[int](), set[str]()
        for node in self.nodes:
            style, reads = styles.get(self.module[node]), self._read[node]
            is_one = any(root in dtensors for root, _ in reads)
            if is_one and node in walk.products.values():
                readers.add(self.module[node])
            if style is not None:
                is_one = not (style.is_local and self._last[self.module[node]] == node)
            if is_one:
                dtensors.add(node)
        return frozenset(readers)

    def spec(self, node: int, label: int) -> int:
        """The spec of a parameter under one of its labels."""
        return self.gives(node, label)[0]

    def is_of(self, parameter: int, modules: Mapping[str, str]) -> bool:
        """True if a parameter is of one of some modules, or of one that is right inside of it."""
        module = self.module[parameter]
        parent = module.rpartition(".")[0]
        return module in modules or parent in modules

    def is_beside(self, parameter: int, modules: Mapping[str, str]) -> bool:
        """True if a parameter is of a module beside one of some modules."""
        parent = self.module[parameter].rpartition(".")[0]
        return any(one.rpartition(".")[0] == parent for one in modules)

    # -- nodes and their labels -------------------------------------------------------------------

    def form(self, node: int) -> Form:
        """The form of a node."""
        d = self.structure.dimensions
        form: Form = d.forms[d.form_of[self.structure.op[node]]]
        return form

    def roots(self, node: int) -> list[tuple[int, int]]:
        """Sources of a node's inputs: nodes, and which of their outputs."""
        a, rows = self.structure.arguments, self._rows[node]
        return list(zip(a.root[rows].tolist(), a.output[rows].tolist(), strict=True))

    def _of_weights(self) -> tuple[list[bool], dict[int, list[bool]]]:
        """Mask of the nodes that are weights: parameters, or made of weights alone; and of nodes
        that read any, which arguments are.
        """
        is_weight, arguments = list(self._is_parameter), {}
        for node in self.nodes:
            weights = [is_weight[root] for root, _ in self._read[node]]
            if any(weights):
                arguments[node], is_weight[node] = weights, all(weights)
        return is_weight, arguments

    def _first_alike(self) -> list[int]:
        """The first node of the same kind, labels and specs, for each that runs or is a parameter;
        others are their own.
        """
        first = list(range(self.structure.n))
        known: dict[tuple[int, str, tuple[int, ...]], int] = {}
        wanted: list[int] = self.structure.wanted.tolist()
        for node in (*self.parameters, *self.nodes, *self.backward):
            rows = tuple([wanted[row] for row in self._rows[node]])
            first[node] = known.setdefault((self._way[node], self.kind[node], rows), node)
        return first

    def wants(self, node: int, label: int) -> list[int]:
        key = self.like[node], label
        if key not in self._wanted:
            s = self.structure
            wants = s.specs_wanted[s.wanted[self._rows[node]], label].tolist()
            self._wanted[key] = wants
        return self._wanted[key]

    def gives(self, node: int, label: int) -> list[int]:
        key = self.like[node], label
        if key not in self._given:
            ways, way = self.structure.ways, self._way[node]
            first = int(ways.first_output[way])
            rows = slice(first, first + len(self.form(node).outputs))
            self._given[key] = ways.outputs[rows, label].tolist()
        return self._given[key]

    def labels(self, node: int) -> list[int]:
        """Labels that devices can have alike, whole first."""
        key, way = self.like[node], self._way[node]
        if key not in self._even:
            ways, labels = self.structure.ways, []
            for label in range(int(ways.n_labels[way])):
                size = int(ways.size[way, label])
                is_even = size % self.size == 0 or (size in self._entries and size >= self.size)
                if ways.label[way, label] >= 0 and is_even:
                    labels.append(label)
            self._even[key] = labels
        return self._even[key]

    @cached_property
    def _entries(self) -> set[int]:
        """Numbers of entries of tables, and of classes: DTensor shares these unevenly too."""
        return {
            cut.size
            for node in self.nodes
            for cut in self.form(node).cuts
            if cut.name in ("vocabulary", "class")
        }

    def _role(self, node: int, label: int) -> str:
        return self.structure.ways.role[self._way[node]][label]

    def _label(self, walk: _StyleWalk, node: int) -> None:
        arguments = self._read[node]
        weights = self._weights.get(node)
        if weights is None:
            self._plain(walk, node, [walk.have.get(at, REPLICATE) for at in arguments])
            return
        have = [
            walk.spec(at[0]) if self._is_parameter[at[0]] else walk.have.get(at, REPLICATE)
            for at in arguments
        ]
        if self._is_weight[node]:
            self._plain(walk, node, have)
            return
        if walk.chosen is not None and self._is_layer(node):
            self._choose(walk, node, weights, have)
            have = [
                walk.spec(at[0]) if w else h
                for at, w, h in zip(arguments, weights, have, strict=True)
            ]
        if any(w and spec >= 0 for w, spec in zip(weights, have, strict=True)):
            self._product(walk, node, weights, have)
        else:
            self._plain(walk, node, have)

    def _choose(self, walk: _StyleWalk, node: int, weights: list[bool], have: list[int]) -> None:
        """Chooses how the weights of a layer are cut, if they can be."""
        best: tuple[int, int] | None = None
        arguments = self._read[node]
        for label in self.labels(node):
            wants, gives = self.wants(node, label), self.gives(node, label)
            specs = [want for want, is_weight in zip(wants, weights, strict=True) if is_weight]
            others = [
                (want, REPLICATE if at in walk.tokens else spec)
                for want, spec, is_weight, at in zip(wants, have, weights, arguments, strict=True)
                if not is_weight
            ]
            as_given = all(want == spec for want, spec in others)
            if not label or max(specs) < 0 or not gives or self._role(node, label) == "partial":
                continue
            by_rows = gives[0] == PARTIAL and as_given
            by_columns = gives[0] >= 0 and as_given and all(spec < 0 for _, spec in others)
            rank = 0 if by_rows else 1 if self._role(node, label) in ("head", "expert") else 2
            if (by_rows or by_columns) and (best is None or rank < best[0]):
                best = rank, label
        if best is None or walk.chosen is None:
            return
        wants = self.wants(node, best[1])
        for at, want, is_weight in zip(arguments, wants, weights, strict=True):
            if is_weight and want >= 0 and self._is_parameter[at[0]]:
                walk.chosen.setdefault(at[0], want)

    def _product(self, walk: _StyleWalk, node: int, weights: list[bool], have: list[int]) -> None:
        """An op that reads a weight which is cut: its other arguments come as they are wanted."""
        label = self._as_weights(node, weights, have)
        if label is None:
            self._cannot(walk, node, "its product is not cut as its weight is")
            self._done(walk, node, 0)
            return
        if not self._is_layer(node):
            self._cannot(walk, node, "it is no nn.Linear or nn.Embedding, or more than that")
        wants = self.wants(node, label)
        for at, want, is_weight in zip(self._read[node], wants, weights, strict=True):
            if is_weight or want != REPLICATE or at not in walk.tokens:
                continue
            # It is gathered once for all that read it, where it is made.
            style = self._telling(walk, at, walk.have[at], want)
            if style is None:
                self._cannot(walk, node, "what it reads is cut by tokens, and no module's output")
            walk.pinned |= style or {}
        walk.products[self.module[node]] = node
        self._done(walk, node, label)

    def _as_weights(self, node: int, weights: list[bool], have: list[int]) -> int | None:
        """The first label under which a product is cut as its weights are; None: there is none."""
        key = self.like[node], tuple(have), tuple(weights)
        if key not in self._by_weights:
            self._by_weights[key] = None
            for label in self.labels(node):
                wants = self.wants(node, label)
                fits = all(
                    want in (spec, ANY) or (spec == REPLICATE and want == PARTIAL)
                    for want, spec, is_weight in zip(wants, have, weights, strict=True)
                    if is_weight
                )
                others = (w for w, is_weight in zip(wants, weights, strict=True) if not is_weight)
                if label and fits and PARTIAL not in others:
                    self._by_weights[key] = label
                    break
        return self._by_weights[key]

    def _is_layer(self, node: int) -> bool:
        """True if a module is a leaf of a kind that has styles, and this its only op but casts."""
        module = self.module[node]
        if (
            not module
            or module in self._parents
            or _PRODUCTS.isdisjoint(self.kind[node].split("."))
        ):
            return False
        return sum("_to_copy" not in self.kind[n] for n in self._of_module[module]) == 1

    def _plain(self, walk: _StyleWalk, node: int, have: list[int]) -> None:
        """An op that works on the specs that it is given, or that modules can be told to give."""
        if (label := self._as_it_is(node, have)) is not None:
            self._done(walk, node, label)
            return
        best: tuple[int, int, dict[str, str]] | None = None
        for label in self.labels(node):
            if not self._is_plain(node, label):
                continue
            specs = zip(self._read[node], have, self.wants(node, label), strict=True)
            wrong = [one for one in specs if one[2] not in (ANY, one[1])]
            styles: dict[str, str] = {}
            for at, spec, want in wrong:
                styles |= self._telling(walk, at, spec, want) or {"": ""}
            if "" not in styles and (best is None or (len(wrong), -label) < best[:2]):
                best = len(wrong), -label, styles
        if best is None:
            self._cannot(walk, node, "it reads tensors that lie in ways that do not go together")
            self._done(walk, node, 0)
            return
        walk.pinned |= best[2]
        self._done(walk, node, -best[1])

    def _as_it_is(self, node: int, have: list[int]) -> int | None:
        """The first label under which an op works on the specs that it is given; None: there is
        none.
        """
        key = self.like[node], tuple(have)
        if key not in self._as_given:
            self._as_given[key] = None
            for label in self.labels(node):
                wants = zip(self.wants(node, label), have, strict=True)
                if self._is_plain(node, label) and all(w in (ANY, spec) for w, spec in wants):
                    self._as_given[key] = label
                    break
        return self._as_given[key]

    def _is_plain(self, node: int, label: int) -> bool:
        """True if a part of the op needs no other part; or classes of a loss are shared."""
        if label == 0:
            return True
        ways, way = self.structure.ways, self._way[node]
        role = self._role(node, label)
        if role == "partial" or PARTIAL in self.gives(node, label):
            return False
        return not ways.exchanged[way, label] or self.is_of_loss(node, label)

    def last(self, module: str) -> int | None:
        """The last node of the forward pass of a module; None: it has none."""
        return self._last.get(module)

    def same_cut(self, at: tuple[int, int], spec: int, other: tuple[int, int]) -> int:
        """The spec of a tensor that cuts it where one of another tensor of its shape does."""
        here, there = (self.form(node).outputs[output] for node, output in (at, other))
        before = prod(size for _, size in here[:spec])
        starts = (prod(size for _, size in there[:i]) for i in range(len(there)))
        return next((i for i, start in enumerate(starts) if start == before), REPLICATE)

    def is_of_loss(self, node: int, label: int) -> bool:
        """True for a label that shares out the classes of a loss."""
        is_loss = any(word in self.kind[node] for word in _LOSS)
        return is_loss and self._role(node, label) not in ("batch", "token")

    def exchanges(self, node: int, label: int) -> bool:
        """True if parts of an op exchange sums under a label."""
        return bool(self.structure.ways.exchanged[self._way[node], label])

    def _telling(
        self, walk: _StyleWalk, at: tuple[int, int], spec: int, want: int
    ) -> dict[str, str] | None:
        """The style of a tensor's producer that gives it the wanted spec; None: there is none."""
        node, output = at
        module = self.module[node]
        is_end = self._last.get(module) == node and output == 0 and node in walk.column
        if not is_end or not module or module in self._parents:
            return None
        word = WHOLE if want == REPLICATE else TOKENS if want == self._token(node) else ""
        if not word or walk.pinned.get(alike(module), word) != word:
            return None
        is_inner = module not in walk.products and spec >= 0 and at not in walk.tokens
        return None if is_inner else {alike(module): word}

    def _token(self, node: int) -> int | None:
        """The spec of a node's output that is cut by tokens; None: there is none."""
        key = self.like[node]
        if key not in self._tokens:
            gives = (
                self.gives(node, label)
                for label in self.labels(node)
                if label and self._role(node, label) == "token"
            )
            self._tokens[key] = next((specs[0] for specs in gives if specs and specs[0] >= 0), None)
        return self._tokens[key]

    def _done(self, walk: _StyleWalk, node: int, label: int) -> None:
        """Notes a node's label, and how what it gives lies."""
        walk.column[node] = label
        if label and self.is_of_loss(node, label):
            walk.loss_parallel = True
        module, token = self.module[node], self._token(node)
        style = walk.pinned.get(alike(module), "") if self._last[module] == node else ""
        for output, spec in enumerate(self.gives(node, label)):
            walk.result[node, output] = spec
            if style == WHOLE:
                spec = REPLICATE
            elif style == TOKENS or spec == PARTIAL:
                by_token = token is not None and (walk.sequence or style == TOKENS)
                spec = token if by_token and token is not None else REPLICATE
            walk.have[node, output] = spec
            if spec >= 0 and spec == token:
                walk.tokens.add((node, output))

    def _cannot(self, walk: _StyleWalk, node: int, why: str) -> None:
        walk.reasons.setdefault(self.module[node], f"{self.kind[node]}: {why}")
        walk.column.setdefault(node, 0)

    # -- modules and their styles -----------------------------------------------------------------

    def _styles(self, walk: _StyleWalk) -> Iterator[tuple[str, Style]]:
        fixed = self._sized(walk)
        ends = [n for n in walk.products.values() if self._is_cut(walk, (n, 0))]
        for module, node in walk.products.items():
            style = self._cut(walk, module, node)
            parent = module.rpartition(".")[0]
            above = (parent, *(parent[: dot.start()] for dot in re.finditer(r"\.", parent)))
            is_whole = not fixed.isdisjoint(above) or style.parts > 1
            is_whole = is_whole or (walk.loss_parallel and node == ends[-1])
            is_local = style.gives is None or (style.gives == -1 and not is_whole)
            yield module, replace(style, is_local=is_local)
        for module in dict.fromkeys(self.module[node] for node in self.nodes):
            if module in walk.products:
                continue
            word = walk.pinned.get(alike(module))
            if self._has_parts_of_parameters(walk, module):
                yield module, self._in_parts(walk, module, word)
            elif word is not None:
                node = self._last[module]
                gives = self._axis(node, walk.have[node, 0]) if word == TOKENS else None
                is_local = gives is None and not self._meets_products(walk, node)
                yield module, Style(OUTPUT, self._made(walk, node), gives, is_local=is_local)

    def _in_parts(self, walk: _StyleWalk, module: str, word: str | None) -> Style:
        """The style of a module that works on tokens with its parameters whole."""
        if module in self._parents or not module:
            walk.reasons.setdefault(module, "it has parameters beside those of layers")
        node = self._last[module]
        is_by_tokens = walk.result[node, 0] == self._token(node)
        axis = self._made(walk, node) if is_by_tokens else None
        if axis is None:
            walk.reasons.setdefault(module, "its parameters are whole, and its input not")
        gives = None if word == WHOLE else axis
        is_local = gives is None and not self._meets_products(walk, node)
        return Style(SEQUENCE, axis, gives, is_local=is_local)

    def _made(self, walk: _StyleWalk, node: int) -> int | None:
        """The axis by which what a node's module makes is cut, before it is turned."""
        return self._axis(node, walk.result[node, 0])

    def _meets_products(self, walk: _StyleWalk, node: int) -> bool:
        """True if a tensor that was gathered is read by products alone: as a DTensor, its gradients
        are then summed before they are scattered, once.
        """
        products = set(walk.products.values())
        return walk.result[node, 0] == self._token(node) and self._readers[node] <= products

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        """Nodes of the forward pass that read what each gives."""
        readers: dict[int, set[int]] = {node: set() for node in self.nodes}
        for node in self.nodes:
            for root, _ in self._read[node]:
                if root in readers:
                    readers[root].add(node)
        return readers

    @cached_property
    def _parameters_of(self) -> dict[str, list[int]]:
        by_module: dict[str, list[int]] = {}
        for parameter in self.parameters:
            by_module.setdefault(self.module[parameter], []).append(parameter)
        return by_module

    def _has_parts_of_parameters(self, walk: _StyleWalk, module: str) -> bool:
        """True if ops of a module read whole parameters and are cut."""
        return any(walk.column[node] > 0 for node in self._with_parameters.get(module, ()))

    @cached_property
    def _with_parameters(self) -> dict[str, list[int]]:
        """By module, ops that read weights and are none themselves."""
        by_module: dict[str, list[int]] = {}
        for node in self._weights:
            if not self._is_weight[node]:
                by_module.setdefault(self.module[node], []).append(node)
        return by_module

    def _cut(self, walk: _StyleWalk, module: str, node: int) -> Style:
        """The style of a module whose weight is cut."""
        arguments = self._read[node]
        kind = ROWS if walk.result[node, 0] == PARTIAL else COLUMNS
        takes: int | None = None
        for at in arguments:
            root = at[0]
            if self._is_weight[root]:
                continue
            if walk.have.get(at, REPLICATE) >= 0:
                takes = self._axis(root, walk.have[at]) if at in walk.tokens else -1
        spec = walk.have[node, 0]
        gives = self._axis(node, spec) if (node, 0) in walk.tokens else -1 if spec >= 0 else None
        return Style(kind, takes, gives, self._parts(walk, module, node, kind))

    def _is_cut(self, walk: _StyleWalk, at: tuple[int, int]) -> bool:
        """True if a tensor is cut, and not by tokens."""
        return walk.have.get(at, REPLICATE) >= 0 and at not in walk.tokens

    def _parts(self, walk: _StyleWalk, module: str, node: int, kind: str) -> int:
        """The number of products that a product is, from the factor by which its weight is cut."""
        parts = 1
        is_look_up = "embedding" in self.kind[node]
        wanted = int((kind == ROWS) != is_look_up)
        for parameter in self._parameters_of.get(module, ()):
            spec = walk.spec(parameter)
            if spec < 0:
                continue
            factors = self.form(parameter).outputs[0]
            axis = factors[spec][0]
            before = prod(size for a, size in factors[:spec] if a == axis)
            if len(factors) > 1 and axis != wanted and len({a for a, _ in factors}) > 1:
                walk.reasons.setdefault(module, "its weight is not that of nn.Linear: it is turned")
            if before > 1 and kind == ROWS:
                walk.reasons.setdefault(module, "rows of its weight that are apart go together")
            parts = max(parts, before)
        return parts

    def _axis(self, node: int, spec: int) -> int | None:
        """The axis of what the node's module gives that is cut by a factor of the node's output."""
        if spec < 0:
            return None
        graph, op = self.structure.graph, int(self.structure.op[node])
        shape = self._shape(op)
        module, shows = graph.modules[op], graph.reduced.shows
        for view in range(op + 1, graph.n_ops):
            if graph.modules[view] != module or graph.phases[view] not in ("", "f"):
                break
            if graph.view[view] and shows[view] == op and self._shape(view):
                shape = self._shape(view)
        sizes = [size for _, size in self.form(node).outputs[0]]
        before, axis = prod(sizes[:spec]), 0
        while axis + 1 < len(shape) and (prod(shape[:axis]) < before or shape[axis] == 1):
            axis += 1
        return axis

    def _shape(self, op: int) -> tuple[int, ...]:
        text = self.structure.graph.outputs[op]
        return (parse_output(text)[0][1] or ()) if text else ()

    def _sized(self, walk: _StyleWalk) -> set[str]:
        """Modules in which views of what is cut are called with the sizes of the whole."""
        graph = self.structure.graph
        if graph.args is None:
            return {graph.modules[op] for op in self.structure.op.tolist()}
        modules = set()
        for root, module, op in self._views:
            if module in walk.products:
                continue
            if (root, 0) in walk.tokens:
                walk.reasons.setdefault(module, "its views join or divide what is cut by tokens")
            elif self._is_cut(walk, (root, 0)) and self._says_whole(op, root, walk.have[root, 0]):
                modules.add(module)
        return modules

    def _says_whole(self, view: int, root: int, spec: int) -> bool:
        """True if a view is called with the size of the whole where what it shows is cut: not with
        -1, which is then the size of a part.
        """
        graph = self.structure.graph
        assert graph.args is not None, "calls are known"
        call = graph.args[view]
        sizes, shape = call[0][1] if call else None, self._shape(view)
        if not isinstance(sizes, list) or -1 not in sizes or len(sizes) != len(shape):
            return isinstance(sizes, list) and -1 not in sizes
        while call is not None and graph.view[view := int(call[0][0]["op"])]:
            if not any(word in graph.kinds[view] for word in (*_SIZED, "getitem")):
                return False  # Axes are in another order.
            call = graph.args[view]
        before = prod(size for _, size in self.form(root).outputs[0][:spec])
        axis = max(a for a in range(len(shape)) if a == 0 or prod(shape[:a]) <= before)
        return bool(sizes[axis] != -1)

    @cached_property
    def _views(self) -> list[tuple[int, str, int]]:
        """Views of the forward pass that are called with sizes: the node that each is a view of,
        its module, and the op.
        """
        graph, structure, views = self.structure.graph, self.structure, []
        assert graph.args is not None, "calls are known"
        for op in np.flatnonzero(graph.view).tolist():
            call = graph.args[op]
            if call is None or len(call[0]) < 2:
                continue
            root = int(structure.node[graph.reduced.shows[op]])
            is_forward = root >= 0 and graph.phases[op] in ("", "f")
            if is_forward and any(word in graph.kinds[op] for word in _SIZED):
                views.append((root, graph.modules[op], op))
        return views
