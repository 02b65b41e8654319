"""Reads a ``torch.fx.GraphModule``, or an exported program, that is in memory.

Tracers leave sizes at nodes (``meta["val"]`` or ``meta["tensor_meta"]``). Where nodes have none,
and where nodes call modules or functions of torch, the module runs once on fake tensors. A node
that calls a module or function costs what it dispatches in that run.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError, importing
from loadmaster.base.units import counted
from loadmaster.model.graph import OpGraph
from loadmaster.readers.pytorch.aten_costs import is_in_place
from loadmaster.readers.pytorch.aten_graph import CallArguments
from loadmaster.readers.pytorch.aten_program import (
    AtenNode,
    AtenPlaceholder,
    AtenProgram,
    Lowered,
    Open,
    Size,
    Sized,
    Stored,
    ValueRef,
    names_in,
    sign,
    to_graph,
)
from loadmaster.readers.pytorch.nn_modules import module_path
from loadmaster.readers.pytorch.tensors import dtype_name, layout

if TYPE_CHECKING:
    import torch


def read(
    program: torch.fx.GraphModule | torch.export.ExportedProgram,
    example_inputs: Any = None,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    name: str | None = None,
) -> OpGraph:
    """The op graph of an FX graph: a node an op, under the node's name.

    Parameters
    ----------
    program
        A ``torch.fx.GraphModule`` or a ``torch.export.ExportedProgram``. It is left as it is.
    example_inputs
        A tensor, a tuple of positional or a mapping of named arguments: to find the sizes of a
        graph whose nodes do not tell them. Only their sizes matter.
    batch, shapes, sizes
        What symbolic sizes are, as for a ``.pt2`` file.
    name
        Of the graph; the module's class, or "program", by default.

    Raises
    ------
    InputError
        Neither of the two, sizes that are not told, or what `loadmaster.read` refuses in a program.
    MissingExtraError
        PyTorch is not installed.

    Examples
    --------
    >>> program = torch.export.export(model, (x,))                    # doctest: +SKIP
    >>> graph = lm.read(program)                                      # doctest: +SKIP
    """
    return traced(program, example_inputs, batch, shapes, sizes, name=name).graph


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph with what it was made of: the module, its program, and where that stands in it.

    ``runs`` are the results of nodes, by name, where the module had to be run for them.
    """

    graph: OpGraph
    module: torch.fx.GraphModule
    program: AtenProgram
    lowered: Lowered
    runs: Mapping[str, Any]


def traced(
    program: Any,
    example_inputs: Any,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    *,
    name: str | None = None,
) -> Traced:
    """The graph that `read` gives, and the module that it was made of."""
    with importing("torch", "torch", "reading an FX graph"):
        import torch
        import torch.fx
    exported = isinstance(program, torch.export.ExportedProgram)
    module = program.graph_module if exported else program
    if not isinstance(module, torch.fx.GraphModule):
        raise InputError(
            f"wants a torch.fx.GraphModule or an ExportedProgram, not a {type(program).__name__}: "
            "lm.capture takes a model"
        )
    runs = _runs(module, example_inputs)
    program_of_fx = _FxReading(module, runs).program()
    if exported:
        _sign(program_of_fx, program)
    else:
        _mark_backward(program_of_fx)
    if not program_of_fx.nodes:
        raise InputError("the graph has no ops")
    lowered = Lowered()
    graph = to_graph(
        program_of_fx,
        name=name or ("program" if exported else type(module).__name__),
        framework=f"torch {torch.__version__}",
        batch=batch,
        shapes=shapes,
        sizes=sizes,
        lowered=lowered,
    )
    return Traced(graph, module, program_of_fx, lowered, runs)


def _runs(module: Any, example_inputs: Any) -> Mapping[str, Any]:
    """Results of running each node, by its name; empty where the nodes tell all sizes and costs."""
    unsized = [node for node in module.graph.nodes if _needs_run(node)]
    if not unsized:
        return {}
    if example_inputs is None:
        node = unsized[0]
        raise InputError(
            f"{counted(len(unsized), 'node does', 'nodes do')} not tell the sizes of what they "
            f"give, {node.name!r} ({_kind(node)}) first: give example_inputs"
        )
    from loadmaster.readers.pytorch.nodes import run_nodes

    return run_nodes(module, example_inputs)


def _needs_run(node: Any) -> bool:
    """True if a node's cost is not in its kind, or its sizes are not in its meta."""
    if node.op in ("call_module", "call_method"):
        return bool(node.users)  # a node without a result that is read is a check
    if node.op == "placeholder":
        return _value(node) is None and bool(node.users)
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    schema = getattr(node.target, "_schema", None)
    gives_nothing = schema is not None and not schema.returns
    return not gives_nothing and (not _is_op(node) or _value(node) is None)


def _is_op(node: Any) -> bool:
    """True if a node calls an op, or does arithmetic on sizes that are known already."""
    if hasattr(node.target, "_schema") or _is_higher_order(node):
        return True
    value = _value(node)
    return value is not None and not any(True for _ in _flat(value))


def _is_higher_order(node: Any) -> bool:
    return any(t.__name__ == "HigherOrderOperator" for t in type(node.target).__mro__)


def _value(node: Any) -> Any:
    """The result that a tracer kept at a node: fake tensors, sizes; None if it kept none."""
    for key in ("val", "example_value", "tensor_meta"):
        if node.meta.get(key) is not None:
            return node.meta[key]
    if hasattr(node.target, "_schema") and is_in_place(str(node.target)):
        return _value(node.args[0])  # export adds such nodes without meta
    return None


def _kind(node: Any) -> str:
    """An op's name, or what else is called: ``torch.nn.Conv2d``, ``torch.relu``, ``Tensor.mean``.

    >>> import operator
    >>> from types import SimpleNamespace as Node
    >>> _kind(Node(op="call_function", target=operator.add))
    '_operator.add'
    """
    if node.op == "call_module":
        called = type(node.graph.owning_module.get_submodule(node.target))
        home = "torch.nn" if called.__module__.startswith("torch.nn.") else called.__module__
        return f"{home}.{called.__qualname__}"
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "placeholder":
        return "input"
    if _is_higher_order(node):
        return f"higher_order.{node.target}"
    if hasattr(node.target, "_schema"):
        return str(node.target)
    return f"{node.target.__module__}.{node.target.__name__}"


def _flat(value: Any) -> Iterator[Any]:
    """The tensors (or fake ones, or their metadata) in a node's result, in order."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)


def _is_several(value: Any) -> bool:
    """True if a result is a tuple or list; TensorMetadata is a tuple, too."""
    return isinstance(value, (list, tuple)) and not hasattr(value, "dtype")


def _sized(value: Any) -> Sized | None:
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return None
    if hasattr(value, "layout"):
        dims, strides = layout(value)
    else:  # TensorMetadata of shape propagation
        dims, strides = tuple(value.shape), tuple(value.stride)
    return Sized(
        dtype_name(value.dtype),
        tuple(map(_size, dims)),
        None if strides is None else tuple(map(_size, strides)),
    )


def _is_size(value: Any) -> bool:
    """True if a value is a symbol, or an expression of symbols, for an integer."""
    return hasattr(value, "node") and hasattr(value, "__index__")


def _size(value: Any) -> Size:
    return value if isinstance(value, int) else str(value.node.expr)


_ORIGINS = {"ParamAOTInput": "parameter", "BufferAOTInput": "buffer"}


class _FxReading:
    """One pass over the nodes of a module; modules within it are programs of their own."""

    def __init__(self, module: Any, runs: Mapping[str, Any]) -> None:
        self._module = module
        self._runs = runs
        self._stored = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._parameters = {id(parameter) for parameter in module.parameters()}
        self._same: dict[str, str] = {}  # a node that repeats another's result
        self._placed: dict[int, str] = {}  # stored tensors by identity
        self._program = AtenProgram()

    def program(self) -> AtenProgram:
        """The module's graph as a program."""
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "get_attr":
                self._fetch(node)
            elif node.op != "output" and not self._is_part(node):
                self._add(node)
        return self._program

    def _result(self, node: Any) -> Any:
        run = self._runs.get(node.name)
        return _value(node) if run is None else run.value

    def _place(self, node: Any) -> None:
        meta = _sized(self._result(node))
        if meta is None:
            return
        origin = node.meta.get("desc")  # AOTAutograd says where an argument comes from
        kind = _ORIGINS.get(type(origin).__name__, "input")
        if kind != "input":
            name = str(origin.target)
            placed = AtenPlaceholder(node.name, name, kind, meta, name.rpartition(".")[0])
        else:
            kind = "parameter" if getattr(_value(node), "_is_param", False) else "input"
            placed = AtenPlaceholder(node.name, node.name, kind, meta)
        self._program.placeholders.append(placed)

    def _fetch(self, node: Any) -> None:
        """A tensor that the module holds."""
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if _sized(value) is not None:
            self._same[node.name] = self._hold(str(node.target), value)

    def _hold(self, path: str, tensor: Any) -> str:
        """The placeholder of a tensor of the module's, made when first asked for."""
        if id(tensor) not in self._placed:
            is_parameter = id(tensor) in self._parameters
            held = "parameter" if is_parameter else "buffer"
            kind = held if path in self._stored else "constant"
            meta = _sized(tensor)
            assert meta is not None
            self._placed[id(tensor)] = f"\0{path}"
            self._program.placeholders.append(
                AtenPlaceholder(f"\0{path}", path, kind, meta, path.rpartition(".")[0])
            )
        return self._placed[id(tensor)]

    def _is_part(self, node: Any) -> bool:
        """True if a node takes one result out of several: part of the node before it."""
        if node.target is not operator.getitem or not hasattr(node.args[0], "op"):
            return False
        return _is_several(self._result(node.args[0]))

    def _add(self, node: Any) -> None:
        result = self._result(node)
        several = _is_several(result)
        results = self._parts(node, result) if several else [(node.name, _sized(result))]
        run = self._runs.get(node.name)
        is_op = _is_op(node)
        self._program.nodes.append(
            AtenNode(
                name=node.name,
                kind=_kind(node),
                arguments=self._arguments(node),
                results=results,
                call=self._call(node),
                several=several,
                module=_module_of(node),
                phase="b" if _is_backward(node) else "f",
                work=None if is_op or run is None else run.work,
                shares=None if is_op or run is None else run.shares,
            )
        )

    def _parts(self, node: Any, result: Sequence[Any]) -> list[tuple[str, Sized | None]]:
        names = [""] * len(result)
        for user in node.users:
            if user.target is operator.getitem and isinstance(user.args[1], int):
                at = user.args[1]
                self._same[user.name] = names[at] or user.name
                names[at] = names[at] or user.name
        return [(name, _sized(each)) for name, each in zip(names, result, strict=True)]

    def _arguments(self, node: Any) -> list[Any]:
        """Arguments in the schema's order, or as they stand, then the module's own tensors."""
        arguments = [self._argument(argument) for argument in node.args]
        schema = getattr(node.target, "_schema", None)
        if schema is not None:
            rest = schema.arguments[len(arguments) :]
            arguments += [self._argument(node.kwargs.get(argument.name)) for argument in rest]
        else:
            arguments += [self._argument(argument) for argument in node.kwargs.values()]
        if node.op == "call_module":
            called = self._module.get_submodule(node.target)
            held = [*called.named_parameters(), *called.named_buffers()]
            arguments += [ValueRef(self._hold(f"{node.target}.{path}", t)) for path, t in held]
        return arguments

    def _call(self, node: Any) -> CallArguments:
        """The call of a node, with the values that its arguments stand for."""
        keywords = {name: self._given(argument) for name, argument in node.kwargs.items()}
        return CallArguments([self._given(argument) for argument in node.args], keywords)

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [self._given(each) for each in argument]
        if getattr(argument, "op", "") == "get_attr":
            return self._held(argument)
        if not hasattr(argument, "op"):
            return argument
        value = self._result(argument)
        if _sized(value) is not None or _is_several(value):
            values = list(self._flat(argument))
            return values if _is_several(value) else values[0]
        return Open(_size(value)) if _is_size(value) else value

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [each for item in argument for each in self._flat(item)]
        if isinstance(argument, Mapping):
            return [each for item in argument.values() for each in self._flat(item)]
        return next(iter(self._flat(argument)), None)

    def _flat(self, argument: Any) -> Iterator[Any]:
        if isinstance(argument, (list, tuple)):
            for each in argument:
                yield from self._flat(each)
        elif isinstance(argument, (bool, int, float, str)) or argument is None:
            yield argument
        elif getattr(argument, "op", "") == "get_attr":
            yield self._held(argument)
        elif hasattr(argument, "op"):
            value = self._result(argument)
            if _sized(value) is not None:
                yield ValueRef(self._same.get(argument.name, argument.name))
            elif _is_several(value):
                parts = [u for u in argument.users if u.target is operator.getitem]
                yield from (ValueRef(self._same.get(u.name, u.name)) for u in parts)
            else:
                yield None

    def _held(self, node: Any) -> Any:
        """A tensor that the module holds, or a module within it."""
        if node.name in self._same:
            return ValueRef(self._same[node.name])
        inner = self._module.get_submodule(node.target)
        return _FxReading(inner, {}).program()


def _module_of(node: Any) -> str:
    stack = node.meta.get("nn_module_stack")
    if stack:
        last = list(stack.values())[-1]
        return module_path(str(last[0] if isinstance(last, tuple) else last))
    return str(node.target) if node.op == "call_module" else ""


def _is_backward(node: Any) -> bool:
    tag = str(node.meta.get("partitioner_tag", ""))
    return bool(node.meta.get("autograd_backward")) or tag.endswith("backward")


# ---- what the whole says of its parts ---------------------------------------------------------


def _mark_backward(program: AtenProgram) -> None:
    """In a joint graph of AOTAutograd, nodes that depend on a tangent are backward."""
    late = {p.value for p in program.placeholders if p.value.startswith("tangents_")}
    if not late:
        return
    for i, node in enumerate(program.nodes):
        if not late.isdisjoint(names_in(node.arguments)):
            program.nodes[i] = replace(node, phase="b")
            late.update(result for result, _ in node.results)


_STORED = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant"}


def _sign(program: AtenProgram, exported: Any) -> None:
    """The signature of an exported program: what its inputs are, what is written back to them."""
    signature = exported.graph_signature
    tensors = {**exported.constants, **exported.state_dict}
    stored = {}
    for spec in signature.input_specs:
        kind = _STORED.get(spec.kind.name)
        if kind is not None:
            name = str(spec.target)
            stored[spec.arg.name] = Stored(kind, name, _storage(tensors.get(name), name))
    outputs = [
        (spec.kind.name.lower(), str(spec.arg.name), str(spec.target or ""))
        for spec in signature.output_specs
        if hasattr(spec.arg, "name")
    ]
    sign(program, stored, outputs)
    program.ranges = {
        str(symbol): (_bound(bounds.lower), _bound(bounds.upper))
        for symbol, bounds in exported.range_constraints.items()
    }


def _storage(tensor: Any, name: str) -> Any:
    """A key that is the same for tensors of one storage; on the meta device, for one tensor."""
    if tensor is None:
        return name
    address = tensor.untyped_storage().data_ptr()
    return (address, tensor.storage_offset()) if address else id(tensor)


def _bound(value: Any) -> int | None:
    return int(value) if value.is_Integer else None  # otherwise the bound is infinite
