"""Seeded graphs that look like deep-learning models nobody tuned on: a function per family.

Recurrent stacks (wavefronts), U-Nets, experts, encoders with cross attention, hubs, cells, side
branches, random layers. Sizes, times and shapes are drawn anew for each graph; ops that play the
same part in every layer cost the same in every layer, as in models. :meth:`Net.trained` adds a
backward pass and an optimizer. ``unseen.py`` puts the graphs on clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from layered import layered

import loadmaster as lm

#: Microseconds of a mean op, large or small; standard deviations of the logarithm of op times and
#: of tensor bytes.
LARGE, SMALL, TIME_SPREAD, SIZE_SPREAD = 120.0, 8.0, 0.8, 1.0

#: Bytes of a mean tensor and a mean parameter.
TENSOR, PARAMETER = 1e6, 8e6

#: How many forward ops there are of all, if the graph is trained: about two backward ops each.
FORWARD_SHARE = 0.37


@dataclass(frozen=True)
class Kind:
    """What ops that play the same part have in common: seconds, output bytes, parameter bytes."""

    seconds: float
    n_bytes: int
    parameter: int = 0


@dataclass
class Net:
    """A graph that grows op by op, in program order.

    Attributes
    ----------
    random : Generator
        What every size and shape is drawn from.
    module : str
        Where in the model the next ops belong.
    """

    random: np.random.Generator
    module: str = "m"
    kinds: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    colocation: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    n_bytes: list[int] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)

    def large(self, scale: float = 1.0) -> Kind:
        """A product or a convolution, with a parameter."""
        parameter = PARAMETER * self._spread(SIZE_SPREAD)
        return Kind(self._time(scale * LARGE), self._size(scale), int(parameter))

    def small(self, scale: float = 1.0) -> Kind:
        """An elementwise op, a normalisation, a join."""
        return Kind(self._time(scale * SMALL), self._size(scale))

    def _time(self, microseconds: float) -> float:
        return max(1.0, round(microseconds * self._spread(TIME_SPREAD))) * 1e-6

    def _size(self, scale: float) -> int:
        return int(TENSOR * scale * self._spread(SIZE_SPREAD))

    def _spread(self, deviation: float) -> float:
        return float(self.random.lognormal(0.0, deviation))

    def add(self, kind: Kind, *reads: int, name: str = "op", phase: str = "f") -> int:
        """Adds an op that reads others; its number."""
        self.kinds.append(name)
        self.modules.append(self.module)
        self.phases.append(phase)
        self.colocation.append("")
        self.seconds.append(0.0 if name in ("parameter", "input") else kind.seconds)
        self.n_bytes.append(kind.n_bytes)
        self.reads.append([*dict.fromkeys(reads)])
        return len(self.kinds) - 1

    def source(self) -> int:
        """Adds an input of the model."""
        return self.add(Kind(0.0, int(TENSOR)), name="input")

    def weight(self, kind: Kind) -> int:
        """Adds the parameter of ops of a kind."""
        return self.add(Kind(0.0, kind.parameter), name="parameter")

    def layer(self, kind: Kind, *reads: int) -> int:
        """Adds an op with a parameter of its own, if its kind has one."""
        return self.add(kind, *reads, *([self.weight(kind)] if kind.parameter else []))

    def chain(self, kinds: Sequence[Kind], *reads: int) -> int:
        """Adds ops one after another; the last."""
        for kind in kinds:
            reads = (self.layer(kind, *reads),)
        return reads[0]

    def under(self, module: str) -> Net:
        """The same graph; the next ops belong to this module."""
        self.module = f"m.{module}"
        return self

    def pick(self, low: int, high: int) -> int:
        """A whole number from a range, both ends included."""
        return int(self.random.integers(low, high + 1))

    def trained(self) -> None:
        """Adds a loss, a gradient for every op and parameter, and an optimizer's updates.

        A gradient reads what the op read and the gradients of its readers. Gradients of a parameter
        that is read again and again are added up one by one, as frameworks do.
        """
        readers: list[list[int]] = [[] for _ in self.kinds]
        for op, reads in enumerate(self.reads):
            for read in reads:
                readers[read].append(op)
        last = [op for op, out in enumerate(readers) if not out and self.kinds[op] == "op"]
        loss = self.add(self.small(), *last, name="loss")
        gradient: dict[int, int] = {}
        summed: dict[int, int] = {}
        for op in reversed(range(loss)):
            if self.kinds[op] != "op":
                continue
            self.module = self.modules[op]
            like = Kind(self.seconds[op], self.n_bytes[op])
            back = [gradient[r] for r in readers[op] if r in gradient] or [loss]
            inputs = [r for r in self.reads[op] if self.kinds[r] != "parameter"]
            gradient[op] = self.add(like, *back, *inputs, phase="b")
            for weight in (r for r in self.reads[op] if self.kinds[r] == "parameter"):
                whole = Kind(like.seconds, self.n_bytes[weight])
                found = self.add(whole, *back, *inputs, phase="b")
                if weight in summed:
                    adds = Kind(SMALL * 1e-6, self.n_bytes[weight])
                    found = self.add(adds, summed[weight], found, phase="b")
                summed[weight] = found
        for weight, found in summed.items():
            self.module = f"optim.{self.modules[weight]}"
            together = self.colocation[weight] = f"parameter{weight}"
            update = Kind(SMALL * 1e-6, 0)
            self.colocation[self.add(update, weight, found, phase="o")] = together

    def graph(self, name: str, times: dict[str, float], has_modules: bool) -> lm.OpGraph:
        """The graph, with seconds for each type of device: a multiple of those of a fast one."""
        pairs = [(read, op) for op, reads in enumerate(self.reads) for read in reads]
        src, dst = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        size, seconds = np.array(self.n_bytes, dtype=np.uint64), np.array(self.seconds)
        is_weight = np.array([kind == "parameter" for kind in self.kinds])
        ops = {
            "name": [f"{kind}{i}" for i, kind in enumerate(self.kinds)],
            "kind": self.kinds,
            "module": self.modules if has_modules else [""] * len(self.kinds),
            "phase": self.phases,
            "colocation": self.colocation,
            "output_bytes": np.where(is_weight, 0, size).astype(np.uint64),
            "param_bytes": np.where(is_weight, size, 0).astype(np.uint64),
            "time": {device: slower * seconds for device, slower in times.items()},
        }
        return lm.OpGraph(ops, {"src": src, "dst": dst, "bytes": size[src]}, name=name)


def recurrent(net: Net, size: int, layers: int | None = None) -> None:
    """Stacked recurrent layers: a cell reads the layer below and the step before (a wavefront).

    2 to 32 layers, unless how many is given. Written layer by layer or step by step.
    """
    layers = net.pick(2, 32) if layers is None else layers
    gates = net.pick(1, 6)
    product, gate, join = net.large(), net.small(), net.small()
    steps = max(size // (layers * (gates + 2)), 2)
    weights = [net.under(f"rnn.{i}").weight(product) for i in range(layers)]
    shape = [(i, t) for i in range(layers) for t in range(steps)]
    if net.random.random() < 0.5:
        shape.sort(key=lambda cell: cell[1])
    below = [net.source() for _ in range(steps)]
    states: dict[tuple[int, int], int] = {}
    for i, t in shape:
        net.under(f"rnn.{i}")
        before = [states[i, t - 1]] if t else []
        made = net.add(product, states[i - 1, t] if i else below[t], weights[i], *before)
        parts = [net.add(gate, made) for _ in range(gates)]
        states[i, t] = net.add(join, *parts, *before)
    tops = [states[layers - 1, t] for t in range(steps)]
    net.under("head").layer(net.large(), *tops)


def u_net(net: Net, size: int) -> None:
    """Down and up again: each level halves the resolution, and joins its like on the way up."""
    depth, heads = net.pick(3, 6), net.pick(1, 8)
    blocks = max(size // (2 * depth * (4 + 2 * heads)), 1)
    state, skips = net.source(), list[int]()
    for step in range(2 * depth):
        level = min(step, 2 * depth - 1 - step)
        scale = 2.0 ** (-level / 2)
        conv, norm, head, join = (net.large(scale), net.small(scale), net.small(scale), net.small())
        for b in range(blocks):
            net.under(f"{'down' if step < depth else 'up'}.{level}.{b}")
            skip = [skips.pop()] if step >= depth else []
            inner = net.chain((norm, conv, norm), state, *skip)
            parts = [net.chain((head, head), inner) for _ in range(heads)]
            state = net.add(join, state, *parts)
            if step < depth:
                skips.append(state)


def experts(net: Net, size: int) -> None:
    """Layers of attention, a router, and experts side by side of which some are much longer."""
    count, deep = net.pick(4, 32), net.pick(2, 4)
    attention = [net.small(), net.large(), net.small(), net.large()]
    router, join = net.small(), net.small()
    expert = [net.large() for _ in range(deep)]
    state = net.source()
    for i in range(max(size // (len(attention) + 2 + deep * count), 1)):
        state = net.under(f"layers.{i}").chain(attention, state)
        routed = net.add(router, state)
        made = [
            net.under(f"layers.{i}.experts.{e}").chain(expert, routed, state) for e in range(count)
        ]
        state = net.under(f"layers.{i}").add(join, state, *made)


def cross_attention(net: Net, size: int) -> None:
    """Encoders side by side, whose outputs every layer of a decoder reads."""
    encoders, heads = net.pick(1, 4), net.pick(1, 8)
    head, join, feed = [net.large(0.5), net.small()], net.small(), [net.large(), net.small()]
    each = 2 * heads + 3
    layers = max(size // (each * encoders + (each + 2 * encoders)), 1)

    def block(state: int, *others: int) -> int:
        crossed = [net.chain(head, state, other) for other in others]
        parts = [net.chain(head, state) for _ in range(heads)]
        return net.chain(feed, net.add(join, state, *parts, *crossed))

    ends = []
    for e in range(encoders):
        state = net.source()
        for i in range(layers):
            net.under(f"encoders.{e}.layers.{i}")
            state = block(state)
        ends.append(state)
    state = net.source()
    for i in range(layers):
        net.under(f"decoder.layers.{i}")
        state = block(state, *ends)


def hubs(net: Net, size: int) -> None:
    """Tensors that hundreds of ops read, and ops that read hundreds."""
    width, deep = net.pick(20, 200), net.pick(1, 5)
    branch = [net.large() if net.random.random() < 0.5 else net.small() for _ in range(deep)]
    hub, old = net.large(), [net.source()]
    for i in range(max(round(size / (0.75 * width * deep + 1)), 1)):
        net.under(f"stages.{i}")
        ends = [
            net.chain(branch, old[-1], old[net.pick(0, len(old) - 1)])
            for _ in range(net.pick(width // 2, width))
        ]
        old.append(net.layer(hub, *ends))


def cells(net: Net, size: int) -> None:
    """NASNet-like cells: each reads the two before it, and joins pairs of what it has."""
    pairs = net.pick(3, 8)
    shape = [(net.pick(0, 99), net.pick(0, 99)) for _ in range(pairs)]
    paths = [[net.large(), net.small()][: net.pick(1, 2)] for _ in range(2 * pairs)]
    join = net.small()
    each = sum(map(len, paths)) + pairs + 1
    before = [net.source(), net.source()]
    for i in range(max(size // each, 1)):
        net.under(f"cells.{i}")
        states, unread = before[-2:], set[int]()
        for p, (left, right) in enumerate(shape):
            read = states[left % len(states)], states[right % len(states)]
            ends = [net.chain(paths[2 * p + side], read[side]) for side in (0, 1)]
            unread -= {*read}
            states.append(net.add(join, *ends))
            unread.add(states[-1])
        before.append(net.add(join, *sorted(unread)))


def side_branches(net: Net, size: int) -> None:
    """A trunk, and branches that leave it, join it again later or end."""
    block, branch = [net.large(), net.small()], [net.large(0.7), net.small(0.7)]
    often, state, open_ends, i = net.random.uniform(0.1, 0.9), net.source(), list[int](), 0
    while len(net.kinds) < 1.5 * size:
        net.under(f"trunk.{i}")
        joined = []
        while open_ends and net.random.random() < 0.4:
            joined.append(open_ends.pop(net.pick(0, len(open_ends) - 1)))
        state = net.chain(block, state, *joined)
        if net.random.random() < often:
            net.under(f"branches.{i}")
            open_ends.append(net.chain(branch * net.pick(1, 20), state))
        i += 1


def random_layers(net: Net, size: int) -> None:
    """Layers of random widths and times, most edges near (``layered.py``)."""
    drawn = layered(size, seed=net.pick(0, 2**31), width=float(net.pick(3, 40)))
    reads: list[list[int]] = [[] for _ in range(size)]
    for src, dst in zip(drawn.src.tolist(), drawn.dst.tolist(), strict=True):
        reads[dst].append(src)
    columns = (drawn.op_seconds, drawn.tensor_bytes, drawn.resident)
    for op, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        kind = Kind(*row)
        weight = [net.weight(kind)] if kind.parameter else []
        # Parameters come between the ops: numbers of ops are not those of the layered graph.
        reads[op] = [net.add(kind, *(reads[r][-1] for r in reads[op]), *weight)]


#: The families by name. Each adds about so many ops to a net, parameters not counted.
FAMILIES: dict[str, Callable[[Net, int], None]] = {
    "recurrent": recurrent,
    "u-net": u_net,
    "experts": experts,
    "cross attention": cross_attention,
    "hubs": hubs,
    "cells": cells,
    "side branches": side_branches,
    "random layers": random_layers,
}
