"""The tree of a model's modules, with the devices that a plan has each module on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.quoting import command
from loadmaster.model.graph import PLACEHOLDERS
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.names import run_order
from loadmaster.transforms.weight_streaming import streamed

#: Beginning of the module path of an optimizer's op in a traced graph.
_OPTIMIZER = "optim."
_STORED = ("parameter", "buffer")


@dataclass
class Module:
    """A module and the modules below it.

    Attributes
    ----------
    path : str
        As PyTorch's ``named_modules`` has it; empty for the model.
    devices : set of int
        Of all ops in it and below it, and of the parameters and buffers that they read there.
    ops, stored : list of int
        Its own: ops that run, in order; parameters and buffers.
    children : dict of str to Module
        By path, in the order in which they are first met.
    """

    path: str
    devices: set[int] = field(default_factory=set)
    ops: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    children: dict[str, Module] = field(default_factory=dict)

    def walk(self) -> Iterator[Module]:
        """The module and all below it, parents first."""
        yield self
        for child in self.children.values():
            yield from child.walk()

    @property
    def is_list(self) -> bool:
        """True if the module may be a mere list of modules, which has no ``forward``."""
        numbered = (child.rpartition(".")[2].isdecimal() for child in self.children)
        return bool(self.children) and not self.ops and not self.stored and all(numbered)

    def under(self) -> list[int]:
        """All ops that run in it or below it, in order."""
        return sorted(op for module in self.walk() for op in module.ops)


class Modules:
    """The tree of a plan's modules.

    Parameters
    ----------
    plan : Plan
    root : str
        What the model is called in the graph's module paths, where it was traced as part of a
        larger one: with ``"m"``, ``m.layer.0`` is ``layer.0``, and what is outside of it, such as
        the loss, is left out.

    Raises
    ------
    InputError
        The graph has no module paths, or none below the root.
    """

    def __init__(self, plan: Plan, root: str = "") -> None:
        self.plan = plan
        self.root = root
        graph = plan.graph
        if not any(graph.modules):
            raise InputError(
                f"the graph {graph.name!r} has no module paths: read it from a file that has them"
            )
        by_name = {
            name: module
            for name, module, kind in zip(graph.names, graph.modules, graph.kinds, strict=True)
            if kind in _STORED
        }
        #: Module of every op below the root; None outside.
        self.of: list[str | None] = [
            self._inside(by_name.get(m.removeprefix(_OPTIMIZER), m)) for m in graph.modules
        ]
        #: Ops that run, in order.
        self.order: list[int] = [i for i in run_order(plan).tolist() if self.of[i] is not None]
        if not self.order:
            raise InputError(f"no op of {graph.name!r} is in a module below {root!r}")
        self.top = Module("")
        stored = [i for i, kind in enumerate(graph.kinds) if kind in _STORED]
        #: Parameters that are loaded from elsewhere whenever their module runs.
        self.streamed = frozenset(np.flatnonzero(streamed(plan.program)).tolist())
        #: Parameters and buffers that an op below the root reads.
        self.weights = frozenset(stored) & {src for src, _ in self.reads()}
        for i in stored:
            self._file(i, stored=True)
        for i in self.order:
            self._file(i, stored=False)

    def _inside(self, module: str) -> str | None:
        if not self.root or module.startswith(f"{self.root}."):
            return module[len(self.root) + 1 :] if self.root else module
        return "" if module == self.root else None

    def _file(self, op: int, *, stored: bool) -> None:
        path = self.of[op]
        if path is None:
            return
        device = int(self.plan.devices[op])
        node = self.top
        # What is streamed, or read by nothing, keeps its module nowhere.
        runs = {device} if not stored or op in self.weights - self.streamed else set()
        node.devices |= runs
        parts = path.split(".") if path else []
        for depth in range(1, len(parts) + 1):
            child = ".".join(parts[:depth])
            node = node.children.setdefault(child, Module(child))
            node.devices |= runs
        (node.stored if stored else node.ops).append(op)

    def name(self, op: int) -> str:
        """A parameter's or buffer's name in the model."""
        name = self.plan.graph.names[op]
        return name.removeprefix(f"{self.root}.") if self.root else name

    def is_of_optimizer(self, op: int) -> bool:
        """True if an op is the optimizer's, or a slot of it."""
        return self.plan.graph.modules[op].startswith(_OPTIMIZER)

    def full(self, path: str) -> str:
        """A module's path in the graph, as constraints speak of it."""
        return ".".join(filter(None, (self.root, path)))

    def is_forward(self, op: int) -> bool:
        """True if an op is of the forward pass."""
        return self.plan.graph.phases[op] in ("", "f")

    def passed(self, src: int, dst: int) -> bool:
        """True if a module reads a tensor that a module above it holds, and so was given it as
        argument.
        """
        holder, reader = self.of[src], self.of[dst]
        return holder != reader and f"{reader}.".startswith(f"{holder}." if holder else "")

    def together(self, *ops: int) -> str:
        """The constraints that keep the modules of some ops on the device of the first."""
        plan = self.plan
        names = (self.full(self.of[op] or "") or plan.graph.names[op] for op in ops)
        device = plan.device(ops[0])
        return " ".join(command("--pin", f"{name}={device}") for name in dict.fromkeys(names))

    def reads(self) -> list[tuple[int, int]]:
        """Pairs of a parameter, buffer or op, and an op below the root that reads it.

        An op that reads a view counts as reading what the view shows. Inputs and constants of the
        model are left out.
        """
        graph, reduced = self.plan.graph, self.plan.graph.reduced
        owner = reduced.shows[graph.src]
        runs = np.zeros(graph.n_ops, dtype=bool)
        runs[self.order] = True
        is_input = np.array(
            [k in PLACEHOLDERS and k not in _STORED for k in graph.kinds], dtype=bool
        )
        kept = runs[graph.dst] & ~is_input[owner]
        if graph.tensor is not None:
            kept &= graph.tensor >= 0
        return list(zip(owner[kept].tolist(), graph.dst[kept].tolist(), strict=True))
