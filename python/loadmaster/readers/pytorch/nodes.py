"""Runs an FX graph once on fake tensors: sizes of every node's result, and what it dispatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from loadmaster.readers.pytorch.aten_graph import AtenGraph
from loadmaster.readers.pytorch.fakes import Fakes
from loadmaster.readers.pytorch.recorder import Recorder
from loadmaster.readers.pytorch.step import Step
from loadmaster.readers.shared.formulas import Cost


@dataclass(frozen=True, slots=True)
class NodeRun:
    """A node's outcome: its result, its work, and whether that ``shares`` its input's storage."""

    value: Any
    work: Cost
    shares: str


class _FxModule(torch.nn.Module):  # type: ignore[misc]
    """An FX graph as a module that runs node by node, whatever code its own `forward` has."""

    def __init__(self, module: torch.fx.GraphModule, graph: AtenGraph) -> None:
        super().__init__()
        self.module = module
        self.graph = graph
        self.runs: dict[str, NodeRun] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        names = [node.target for node in self.module.graph.nodes if node.op == "placeholder"]
        order = [kwargs[name] for name in names[len(args) :] if name in kwargs]
        return _Interpreter(self).run(*args, *order)


class _Interpreter(torch.fx.Interpreter):  # type: ignore[misc]
    def __init__(self, owner: _FxModule) -> None:
        super().__init__(owner.module)
        self._owner = owner

    def run_node(self, node: torch.fx.Node) -> Any:
        graph = self._owner.graph
        start, unknown = graph.n_ops, graph.unknown.total()
        inputs = [self.env[n] for n in node.all_input_nodes if n in self.env]
        value = super().run_node(node)
        work = Cost(
            sum(graph.ops["flops"][start:]),
            sum(graph.ops["bytes_accessed"][start:]),
            graph.unknown.total() == unknown,
        )
        self._owner.runs[node.name] = NodeRun(value, work, _shares(value, inputs, work.bytes))
        return value


def _shares(value: Any, inputs: list[Any], moved: int) -> str:
    """True if a result is the storage of the first input again, as a view or changed in place."""
    first = next((t for t in tree_iter(inputs[:1]) if isinstance(t, torch.Tensor)), None)
    result = next((t for t in tree_iter(value) if isinstance(t, torch.Tensor)), None)
    if first is None or result is None:
        return ""
    if first.untyped_storage()._cdata != result.untyped_storage()._cdata:
        return ""
    return "in_place" if moved else "view"


def run_nodes(module: torch.fx.GraphModule, example_inputs: Any) -> Mapping[str, NodeRun]:
    """The outcome of each node of a module that runs on such inputs, by the node's name.

    Nothing is computed and no memory is taken.
    """
    graph = AtenGraph()
    owner = _FxModule(module, graph)
    fakes = Fakes(owner)
    step = Step(owner, Recorder(graph, fakes), fakes)
    args, kwargs = step.inputs(example_inputs)
    with fakes.mode, step.in_place(), torch.no_grad():
        step.forward(args, kwargs)
    return owner.runs
