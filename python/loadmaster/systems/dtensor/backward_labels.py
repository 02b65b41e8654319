"""Labels of a backward pass under parallel styles of modules: they follow from the forward pass.

Autograd repeats the forward pass in reverse. An op of the backward pass works on the gradients that
it is given, and on tensors as the forward pass left them; nothing is turned where that can be
helped. The gradient of the input of a layer that is cut by columns is in parts of a sum. Where that
input is a plain tensor, each layer sums its own at once. Where it is a DTensor, gradients stay in
parts of sums until something needs their values, and those of several readers are summed once.
A module that turned what it gave turns the gradient of that back before anything else.
"""

from __future__ import annotations

from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE
from loadmaster.strategies.sharding.structure import GRADIENT
from loadmaster.strategies.sharding.uniform import Mask
from loadmaster.systems.dtensor.module_styles import (
    COLUMNS,
    ROWS,
    Forward,
    Styled,
)

#: Costs that rank labels: a tensor is sliced; the optimizer sums parts; a tensor is sent; a
#: gradient does not lie as its parameter, or a tensor is turned that nothing turns.
_SLICED, _SUMMED, _SENT, _ASTRAY = 1, 5, 10, 50

#: Kinds of a cast, and of a sum of two gradients.
_CAST, _ADD = "_to_copy", "aten.add.Tensor"


class Backward:
    """The backward pass of a labelled graph whose modules have styles.

    Parameters
    ----------
    forward : Forward
    styled : Styled
        Of the forward pass.
    specs : dict of int to int
        The factors by which parameters are cut, by node.
    may : bool [n_nodes, most labels]
        Labels that each node may have.
    """

    def __init__(self, forward: Forward, styled: Styled, specs: dict[int, int], may: Mask) -> None:
        self.forward, self.styled, self.specs, self.may = forward, styled, specs, may
        self._targets = self._gradients()
        self._lies: dict[tuple[int, int], int] = {}
        self._known: dict[tuple[int, tuple[int, ...], tuple[int | None, ...]], int] = {}

    def columns(self) -> dict[int, int]:
        """The label of each node of the backward pass. O(arguments x labels)."""
        columns = {}
        for node in self.forward.backward:
            columns[node] = label = self._label(node)
            for output, spec in enumerate(self.forward.gives(node, label)):
                is_summed = spec == PARTIAL and self._is_summed_at_once(node, output)
                self._lies[node, output] = REPLICATE if is_summed else spec
        return columns

    def _label(self, node: int) -> int:
        """The label that turns the least."""
        forward = self.forward
        have = tuple(self._have(node, at) for at in forward.roots(node))
        n_outputs = len(forward.form(node).outputs)
        targets = tuple(self._targets.get((node, i)) for i in range(n_outputs))
        key = forward.like[node], have, targets
        if key not in self._known:
            labels = [label for label in forward.labels(node) if self.may[node, label]]
            costs = {label: self._cost(node, label, have, targets) for label in labels}
            self._known[key] = min(costs, key=lambda label: costs[label], default=0)
        return self._known[key]

    def _have(self, node: int, at: tuple[int, int]) -> int:
        """The spec of an argument: of what its own module made, as it was before it was turned."""
        if at in self._lies:
            return self._turned_back(node, at)
        if at[0] in self.specs:
            return self.specs[at[0]]
        forward = self.forward
        is_own = forward.module[at[0]] == forward.module[node]
        lies = self.styled.before if is_own else self.styled.lies
        return lies.get(at, REPLICATE)

    def _turned_back(self, node: int, at: tuple[int, int]) -> int:
        """The spec of a gradient as a module has it: one that turned what it gave turns its
        gradient back before anything else. Sums of gradients come before that.
        """
        forward, module = self.forward, self.forward.module[node]
        if forward.module[at[0]] == module or _ADD in forward.kind[node]:
            return self._lies[at]
        last = forward.last(module)
        if last is None or self.styled.lies[last, 0] == self.styled.before[last, 0]:
            return self._lies[at]
        spec = self.styled.before[last, 0]
        return forward.same_cut((last, 0), spec, at) if spec >= 0 else REPLICATE

    def _cost(
        self, node: int, label: int, have: tuple[int, ...], targets: tuple[int | None, ...]
    ) -> int:
        forward, cost = self.forward, 0
        wants = forward.wants(node, label)
        for (root, _), spec, want in zip(forward.roots(node), have, wants, strict=True):
            if want not in (ANY, spec):
                cost += _ASTRAY * (root in self.specs)
                cost += _SLICED if spec == REPLICATE else _SENT
                cost += _ASTRAY * (want == PARTIAL and spec != REPLICATE)
        for spec, target in zip(forward.gives(node, label), targets, strict=True):
            if target is not None and spec != target:
                is_sum = spec == PARTIAL and target == REPLICATE
                cost += _SUMMED if is_sum else _SLICED if spec == REPLICATE else _ASTRAY
        is_loss = forward.is_of_loss(node, label)
        return cost + _ASTRAY * (forward.exchanges(node, label) and not is_loss)

    def _is_summed_at_once(self, node: int, output: int) -> bool:
        """True for the gradient of the input of a layer, where that is a plain tensor."""
        style = self.styled.styles.get(self.forward.module[node])
        if (node, output) in self._targets or style is None or style.kind not in (COLUMNS, ROWS):
            return False
        return self.forward.module[node] not in self.styled.on_dtensors

    def _gradients(self) -> dict[tuple[int, int], int]:
        """The specs in which updates read gradients, and those of what these are casts or sums
        of.
        """
        forward = self.forward
        structure, targets = forward.structure, dict[tuple[int, int], int]()
        a, stands_for, updates = structure.arguments, structure.stands_for, structure.updates
        parameter = dict(
            zip(updates.of_parameter.tolist(), updates.parameter.tolist(), strict=True)
        )
        for row in (a.traffic == GRADIENT).nonzero()[0].tolist():
            reader, gradient = int(a.reader[row]), (int(a.root[row]), int(a.output[row]))
            roots = forward.roots(reader)
            states = [i for i, (root, _) in enumerate(roots) if stands_for[root] >= 0]
            owner = parameter.get(int(updates.of_op[structure.op[reader]]), -1)
            spec = self.specs.get(int(structure.node[owner]), REPLICATE)
            for label in forward.labels(reader):
                wants = forward.wants(reader, label)
                if states and all(wants[i] in (spec, ANY) for i in states):
                    targets[gradient] = wants[roots.index(gradient)]
                    break
        for node in forward.backward[::-1]:
            if (node, 0) in targets and any(kind in forward.kind[node] for kind in (_CAST, _ADD)):
                spec = targets[node, 0]
                for root in forward.roots(node):
                    cut = forward.same_cut((node, 0), spec, root) if spec >= 0 else spec
                    targets.setdefault(root, cut)
        return targets
