"""The tape of an exported program or of an FX graph: a call per node, under the node's name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.readers.pytorch.aten_graph import GraphValue
from loadmaster.readers.pytorch.fx import Traced
from loadmaster.running.tape.calls import Call, Ref
from loadmaster.running.tape.slots import Placeholder, Slot


@dataclass(frozen=True, eq=False)
class ProgramCalls:
    """The parts of a :class:`~loadmaster.running.tape.tape.Tape` that a program gives."""

    graph: OpGraph
    calls: tuple[Call, ...]
    slots: Mapping[int, Slot]
    placeholders: tuple[Placeholder, ...]
    outputs: Mapping[str, int]


def program_calls(program: Any, traced: Traced, example_inputs: Any) -> ProgramCalls:
    """The calls of a program that was read.

    Raises
    ------
    InputError
        Open sizes, inputs that the program does not have, a constant without numbers.
    """
    return _ProgramPass(program, traced, example_inputs).read()


class _ProgramPass:
    """One pass over the nodes; ``values`` has what stands for each node in arguments."""

    def __init__(self, program: Any, traced: Traced, example_inputs: Any) -> None:
        self._traced, self._module = traced, traced.module
        self._exported = program if isinstance(program, torch.export.ExportedProgram) else None
        self._slots: dict[int, Slot] = {}
        self._slot_of: dict[int, int] = {}  # by the identity of a value of the graph
        self._placeholders: list[Placeholder] = []
        self._held: dict[int, Ref] = {}  # tensors that the module holds, by identity
        self._values: dict[str, Any] = {}
        self._parts: dict[str, list[str]] = {}
        self._calls: list[Call] = []
        self._outputs: dict[str, int] = {}
        self._tensors = self._given(example_inputs)

    def read(self) -> ProgramCalls:
        """The whole."""
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "get_attr":
                self._values[node.name] = self._fetched(str(node.target))
            elif node.op == "output":
                self._output(node)
            else:
                self._node(node)
        self._copy_back()
        return ProgramCalls(
            graph=self._traced.graph,
            calls=tuple(sorted(self._calls, key=lambda call: call.op)),
            slots=self._slots,
            placeholders=tuple(self._placeholders),
            outputs=self._outputs,
        )

    # -- what is there

    def _given(self, example_inputs: Any) -> Iterator[torch.Tensor]:
        """The user's tensors, in the order of the program's inputs."""
        inputs = example_inputs
        if inputs is None and self._exported is not None:
            inputs = self._exported.example_inputs
        if inputs is None:
            raise InputError("the program does not say its inputs: give example_inputs")
        return iter([leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)])

    def _place(self, node: Any) -> None:
        placed = {p.value: p for p in self._traced.program.placeholders}.get(node.name)
        if placed is None:
            self._values[node.name] = None  # an argument that is no tensor
            return
        value = self._traced.lowered.values[node.name]
        if id(value) not in self._slot_of:
            tensor = self._tensor(placed.name, placed.kind)
            self._put(value, placed.name, placed.kind, tensor)
        self._values[node.name] = Ref(self._slot_of[id(value)])

    def _tensor(self, name: str, kind: str) -> torch.Tensor:
        """The numbers of a placeholder: the user's, or the program's own."""
        if kind == "input" or self._exported is None:
            tensor = next(self._tensors, None)
            if tensor is None:
                raise InputError(f"the program has an input {name!r}, and none is given for it")
        else:
            tensor = self._exported.state_dict.get(name, self._exported.constants.get(name))
        if not isinstance(tensor, torch.Tensor) or tensor.device.type == "meta":
            raise InputError(f"{kind} {name!r} has no numbers: export the model on a device")
        return tensor.detach()

    def _put(self, value: GraphValue, name: str, kind: str, tensor: torch.Tensor) -> None:
        slot = self._new(value)
        self._placeholders.append(Placeholder(slot, value.op, name, kind, tensor))

    def _new(self, value: GraphValue) -> int:
        """A slot for a value of the graph. How it lies in memory is looked up when it runs."""
        slot = len(self._slots)
        strides = value.tensor.strides or (1,) * len(value.tensor.shape)
        self._slots[slot] = Slot(
            value.op, value.storage, torch.float32, value.tensor.shape, strides, 0
        )
        self._slot_of[id(value)] = slot
        return slot

    def _fetched(self, path: str) -> Any:
        """A tensor that the module holds, or a module within it."""
        attribute: Any = self._module
        for part in path.split("."):
            attribute = getattr(attribute, part)
        return self._hold(path, attribute) if isinstance(attribute, torch.Tensor) else attribute

    def _hold(self, path: str, tensor: torch.Tensor) -> Ref:
        if id(tensor) not in self._held:
            value = self._traced.lowered.values[f"\0{path}"]
            kind = self._traced.graph.kinds[value.op]
            self._put(value, path, kind, tensor.detach())
            self._held[id(tensor)] = Ref(self._slot_of[id(value)])
        return self._held[id(tensor)]

    # -- calls

    def _node(self, node: Any) -> None:
        if node.target is operator.getitem and node.args[0].name in self._parts:
            name = self._parts[node.args[0].name][node.args[1]]
            value = self._traced.lowered.values[name]
            self._values[node.name] = Ref(self._slot_of[id(value)])
            return
        op = self._traced.lowered.ops.get(node.name)
        if op is None:
            self._values[node.name] = self._number(node)
            return
        function, args, kwargs = self._called(node)
        args, kwargs = self._value((args, kwargs))
        results, parts, several = self._results(node, op)
        changed = self._traced.lowered.changed[op]
        self._calls.append(
            Call(
                op,
                function,
                tuple(args),
                dict(kwargs),
                results,
                several,
                parts,
                tuple(self._slot_of[id(value)] for value in changed),
                _is_random(function),
            )
        )

    def _value(self, argument: Any) -> Any:
        """An argument with slots for nodes, in plain lists, tuples and dictionaries."""
        if isinstance(argument, torch.fx.Node):
            return self._values[argument.name]
        if isinstance(argument, list):
            return [self._value(each) for each in argument]
        if isinstance(argument, tuple):
            return tuple(self._value(each) for each in argument)
        if isinstance(argument, dict):
            return {key: self._value(each) for key, each in argument.items()}
        if isinstance(argument, slice):
            ends = argument.start, argument.stop, argument.step
            return slice(*map(self._value, ends))
        return argument

    def _number(self, node: Any) -> Any:
        """The value of a node that has no op: a size, or nothing."""
        run = self._traced.runs.get(node.name)
        value = node.meta.get("val") if run is None else run.value
        if any(isinstance(leaf, torch.SymInt) for leaf in tree_leaves(value)):
            raise InputError(
                f"node {node.name!r} gives a size that is open: export the program with the sizes "
                "that it is to run with"
            )
        return value

    def _called(self, node: Any) -> tuple[Callable[..., Any], Any, Any]:
        if node.op == "call_method":
            return partial(_method, node.target), node.args, node.kwargs
        if node.op == "call_module":
            called = self._module.get_submodule(node.target)
            held = dict([*called.named_parameters(), *called.named_buffers()])
            own = [self._hold(f"{node.target}.{path}", tensor) for path, tensor in held.items()]
            return partial(_module, called, tuple(held)), (own, *node.args), node.kwargs
        return node.target, node.args, node.kwargs

    def _results(self, node: Any, op: int) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        """Slots of a node's results, the ops that take one out of several, and whether it is so."""
        values = self._traced.lowered.values
        if node.name in values:
            slot = self._new(values[node.name])
            self._values[node.name] = Ref(slot)
            return (slot,), (), False
        names: dict[int, str] = {}
        for user in node.users:
            if user.target is operator.getitem and user.name in values:
                names[user.args[1]] = user.name
        self._parts[node.name] = [names.get(i, "") for i in range(1 + max(names, default=-1))]
        values_of_parts = [values.get(name) for name in self._parts[node.name]]
        results = tuple(-1 if value is None else self._new(value) for value in values_of_parts)
        return results, tuple(-1 if value is None else value.op for value in values_of_parts), True

    def _copy_back(self) -> None:
        """Copies into its buffers at the end of a program without in-place ops."""
        traced = self._traced
        pairs = zip(traced.program.copies, traced.lowered.copies, strict=True)
        for (source, target), op in pairs:
            if op < 0:
                continue
            values = traced.lowered.values
            into, read = (self._slot_of[id(values[name])] for name in (target, source))
            copy = GraphValue(
                op, values[target].tensor, values[target].owner, values[target].storage
            )
            self._calls.append(
                Call(
                    op,
                    torch.ops.aten.copy_.default,
                    (Ref(into), Ref(read)),
                    {},
                    (self._new(copy),),
                    writes=(into,),
                )
            )

    # -- outputs

    def _output(self, node: Any) -> None:
        signature = self._exported.graph_signature.output_specs if self._exported else None
        leaves = tree_leaves(self._value(node.args))
        if signature is None:
            named = _numbered(leaves)
        else:
            users = [
                leaf
                for leaf, spec in zip(leaves, signature, strict=True)
                if spec.kind.name == "USER_OUTPUT"
            ]
            named = _numbered(users)
            for leaf, spec in zip(leaves, signature, strict=True):
                if spec.kind.name == "LOSS_OUTPUT":
                    named["loss"] = leaf
                if spec.kind.name == "GRADIENT_TO_PARAMETER":
                    named[f"gradient.{spec.target}"] = leaf
        self._outputs = {name: leaf.slot for name, leaf in named.items() if isinstance(leaf, Ref)}


def _numbered(leaves: Sequence[Any]) -> dict[str, Any]:
    if len(leaves) == 1:
        return {"output": leaves[0]}
    return {f"output.{i}": leaf for i, leaf in enumerate(leaves)}


def _is_random(function: Any) -> bool:
    """True if a call may draw numbers: so may all that are no ops."""
    tags = getattr(function, "tags", None)
    return tags is None or torch.Tag.nondeterministic_seeded in tags


def _method(name: str, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return getattr(tensor, name)(*args, **kwargs)


def _module(
    module: torch.nn.Module,
    names: Sequence[str],
    held: Sequence[torch.Tensor],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """A module with other tensors in the place of its own."""
    tensors = dict(zip(names, held, strict=True))
    return torch.func.functional_call(module, tensors, args, kwargs)
