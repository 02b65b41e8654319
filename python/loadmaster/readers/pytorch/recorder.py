"""Records what PyTorch dispatches while a step runs on fake tensors, into a graph of ATen ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from loadmaster.base.errors import InputError
from loadmaster.readers.pytorch.aten_costs import AtenTensor, bare, is_view, written
from loadmaster.readers.pytorch.aten_graph import (
    AtenGraph,
    CallArguments,
    Effects,
    GraphValue,
    OpPlace,
    tensor_of,
)
from loadmaster.readers.pytorch.fakes import Fakes
from loadmaster.readers.pytorch.finite import FiniteTruths
from loadmaster.readers.pytorch.tensors import dtype_name, layout

_ON_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)

_DEVICE_OF = torch.ops.prim.device.default
_READ = torch.ops.aten._local_scalar_dense.default

#: Ops between two calls of a progress callback: some tenths of a second.
_OPS_PER_WORD = 256

#: Steps that an optimizer finds it has done: so many that none of its first steps' cases apply.
_STEPS = 1000.0


def described(tensor: torch.Tensor) -> AtenTensor:
    """Type, sizes and strides of a tensor."""
    sizes, strides = layout(tensor)
    return AtenTensor(dtype_name(tensor.dtype), sizes, strides)


class Listener(Protocol):
    """Is told of all that goes into a recorder's graph, with the tensors themselves."""

    def placed(
        self, tensor: torch.Tensor, op: int, name: str, kind: str, real: torch.Tensor | None
    ) -> None:
        """A placeholder; a fake one may stand for a ``real`` one."""

    def called(
        self,
        op: int,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        writes: Sequence[Any],
        phase: str,
    ) -> None:
        """An op, the function with its arguments, its result, and the arguments that it changes.

        Results that come as a tuple have a ``getitem`` each, in the ops that follow.
        """


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Puts every op that is dispatched while it is active into a graph.

    Tensors are known by identity, and by storage where autograd hands on another tensor of it. The
    recorder keeps neither alive, or autograd would copy where it need not. Under any dispatch mode,
    this one too, autograd adds gradients up out of place, not in place.
    """

    supports_higher_order_operators = True  # or PyTorch would refuse them in words of its own

    def __init__(
        self,
        graph: AtenGraph,
        fakes: Fakes,
        progress: Callable[[str, int], None] | None = None,
        listener: Listener | None = None,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.fakes = fakes
        self._listener = listener
        self._progress = progress
        #: The error by which the progress callback has stopped the capture.
        self.stopped: Exception | None = None
        self.phase = "f"
        self.muted = False
        self._values = WeakIdKeyDictionary()
        self._storages: dict[int, tuple[StorageWeakRef, GraphValue]] = {}
        self._counters: dict[int, StorageWeakRef] = {}
        self._model = ""  # the class of the model that is followed
        self._modules: list[str] = []
        self._module_of: dict[int, str] = {}  # by the sequence number of autograd's node
        self._last_module = ""
        self._recorded = 0
        self._finite = FiniteTruths()
        self._updates: dict[int, int] = {}  # the parameter that a storage belongs to

    # -- what is there before the step

    def placeholder(
        self,
        tensor: torch.Tensor,
        name: str,
        kind: str,
        module: str = "",
        real: torch.Tensor | None = None,
    ) -> GraphValue:
        """Makes a tensor known as a placeholder; a fake one may stand for a ``real`` one."""
        value = self.graph.placeholder(name, kind, described(tensor), module)
        self._bind(tensor, value)
        if self._listener is not None:
            self._listener.placed(tensor, value.op, name, kind, real)
        return value

    def counter(self, tensor: torch.Tensor) -> None:
        """A scalar that the host keeps, as an optimizer's count of steps: not recorded."""
        reference = storage_of(tensor)
        self._counters[reference.cdata] = reference

    def belongs(self, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
        """Notes that ops which update the tensor update the parameter."""
        self._updates[self.value_of(tensor).storage] = self.value_of(parameter).owner

    def value_of(self, tensor: torch.Tensor) -> GraphValue:
        """The value of a tensor; a tensor that no op made is a constant of the model."""
        if tensor in self._values:
            recorded: GraphValue = self._values[tensor]
            return recorded
        known = self._storages.get(storage_of(tensor).cdata)
        if known is None:
            return self.placeholder(tensor, "constant", "constant", self._module(), tensor)
        latest = known[1]
        value = replace(latest, tensor=described(tensor), id=-1)
        self._values[tensor] = value
        return value

    def _bind(self, tensor: torch.Tensor, value: GraphValue) -> None:
        self._values[tensor] = value
        reference = storage_of(tensor)
        self._storages[reference.cdata] = (reference, value)

    # -- modules

    @contextmanager
    def following(self, model: torch.nn.Module) -> Iterator[None]:
        """Keeps track of which of the model's modules runs."""
        hooks = []
        self._model = type(model).__name__
        for name, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entering(name), prepend=True))
            hooks.append(module.register_forward_hook(self._leaving, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda *_: self._modules.append(name)

    def _leaving(self, *_: Any) -> None:
        self._modules.pop()

    def _module(self, parameter: int | None = None) -> str:
        """The module of the op at hand; when autograd runs the op, the module of its forward op."""
        if self.phase == "o":
            return "optim" if parameter is None else f"optim.{self.graph.ops['name'][parameter]}"
        node = torch._C._current_autograd_node()
        if self._modules:
            module = self._modules[-1]
        elif node is not None:
            module = self._module_of.get(node._sequence_nr(), self._last_module)
        else:
            module = self._last_module if self.phase == "b" else ""
        if self.phase == "f" or self._modules:
            self._module_of.setdefault(torch.autograd._get_sequence_nr() - 1, module)
        self._last_module = module
        return module

    # -- ops

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            raise InputError(
                f"the model calls {func}, which runs programs of its own: "
                "export it (torch.export.export) and read the program"
            )
        if func is _READ and self.phase == "o":
            return _as_if_read(args[0])
        if func is _READ and (truth := self._finite.of(self.value_of(args[0]))) is not None:
            return truth
        if func is _DEVICE_OF:
            return args[0].fake_device  # Optimizers ask more often than they do anything else.
        args = self.fakes.at_home(args)
        kwargs = {name: self.fakes.at_home(each) for name, each in kwargs.items()}
        arguments = (*args, *kwargs.values())
        if (
            self.phase == "o"
            and _changes_values_alone(func)
            and (self.muted or _fits(func, arguments))
        ):
            result = args[0]  # Fake tensors have no values that could change.
        else:
            try:
                result = func(*args, **kwargs)
            except _ON_VALUES:
                raise InputError(self._depends(str(func))) from None
        if isinstance(result, tuple):
            result = _distinct(result)
        if not self.muted:
            self._record(func, args, kwargs, result)
        return result

    def _depends(self, kind: str) -> str:
        module = self._modules[-1] if self._modules else ""
        where = f" in module {module!r}" if module else ""
        if self._modules and not module:
            where = f" in {self._model}"
        cause = f"the size of what {bare(kind)} gives{where} depends on values"
        if bare(kind) == "_local_scalar_dense":
            cause = f"a number is read off a tensor{where} (item(), or a branch on it)"
        way = "rewrite it (torch.where, torch.cond and torch.export.export)"
        if module.rpartition(".")[2] == "experts":
            way = "choose model.set_experts_implementation('grouped_mm') of Hugging Face"
        return (
            f"{cause}, which no capture without data can know: {way}, or read a trace of a real "
            "step"
        )

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if func.namespace == "prim":
            return  # asks for a tensor's sizes
        schema = func._schema.arguments
        arguments = [
            args[i] if i < len(args) else kwargs.get(argument.name)
            for i, argument in enumerate(schema)
        ]
        tensors = [t for t in _leaves((*args, *kwargs.values())) if isinstance(t, torch.Tensor)]
        outputs = [t for t in _leaves((result,)) if isinstance(t, torch.Tensor)]
        if self._counters and tensors and all(map(self._is_counter, tensors)):
            for tensor in outputs:
                self.counter(tensor)
            return
        positional = [self._argument(argument) for argument in args]
        named = {name: self._argument(argument) for name, argument in kwargs.items()}
        inputs = positional + [named.get(each.name) for each in schema[len(positional) :]]
        kind = str(func)
        positions = [] if is_view(kind) else self._written(func, kind, inputs)
        changes = [v for p in positions for v in _leaves((inputs[p],)) if isinstance(v, GraphValue)]
        if not outputs and not changes:
            return
        op = self._add(kind, inputs, result, outputs, changes, CallArguments(positional, named))
        if self._listener is not None:
            written_to = [arguments[position] for position in positions]
            self._listener.called(op, func, args, kwargs, result, written_to, self.phase)
        self._recorded += 1
        if self._progress is not None and self._recorded % _OPS_PER_WORD == 0:
            try:
                self._progress(self.phase, self.graph.n_ops)
            except Exception as error:
                self.stopped = error
                raise

    def _add(
        self,
        kind: str,
        inputs: Sequence[Any],
        result: Any,
        outputs: Any,
        changes: Sequence[GraphValue],
        call: CallArguments,
    ) -> int:
        read = [value for value in _leaves(inputs) if isinstance(value, GraphValue)]
        shared = next((v for v in (self._shown(t, read) for t in outputs) if v is not None), None)
        changed = [v for v in changes if shared is not None and v.storage == shared.storage]
        parameter = self._parameter(read, changes) if self.phase == "o" else None
        module = self._module(parameter)
        flat = list(result) if isinstance(result, (list, tuple)) else [result]
        results = self.graph.op(
            kind,
            inputs,
            [described(t) if isinstance(t, torch.Tensor) else None for t in flat],
            place=OpPlace(module=module, phase=self.phase),
            effects=Effects(
                None if changed else shared,
                [*changed, *(value for value in changes if value not in changed)],
                bool(changed),
            ),
            call=call,
        )
        op = self.graph.n_ops - 1
        self._finite.note(op, kind, inputs)
        if parameter is not None:
            self.graph.share_device(parameter, op)
        for index, (tensor, value) in enumerate(zip(flat, results, strict=True)):
            if value is None:
                continue
            if not isinstance(result, torch.Tensor):
                value = self.graph.getitem(
                    value, index, name="getitem", module=module, phase=self.phase
                )
            self._bind(tensor, value)
            if parameter is not None:
                self._updates.setdefault(value.storage, parameter)
        return op

    def _argument(self, argument: Any) -> Any:
        """An argument with values for tensors; a scalar that the host counts has none."""
        if isinstance(argument, torch.Tensor):
            return None if self._is_counter(argument) else self.value_of(argument)
        if isinstance(argument, (list, tuple)):
            return [self._argument(each) for each in argument]
        return argument

    def _written(self, func: Any, kind: str, inputs: Sequence[Any]) -> list[int]:
        """Positions of what an op changes: as its schema says, and what its schema leaves out."""
        unsaid = written(kind, [tensor_of(argument) for argument in inputs])
        return sorted({*_written_by_schema(func), *unsaid})

    def _shown(self, tensor: torch.Tensor, read: Sequence[GraphValue]) -> GraphValue | None:
        """The input value whose storage an output shows."""
        known = self._storages.get(storage_of(tensor).cdata)
        if known is None:
            return None
        return next((v for v in read if v.storage == known[1].storage), None)

    def _is_counter(self, tensor: torch.Tensor) -> bool:
        return bool(self._counters) and storage_of(tensor).cdata in self._counters

    def _parameter(self, read: Sequence[GraphValue], changes: Sequence[GraphValue]) -> int | None:
        """The parameter that an op of the optimizer updates, or helps to."""
        for values in (changes, read):
            updated = {self._updates[v.storage] for v in values if v.storage in self._updates}
            if len(updated) == 1:
                return updated.pop()
        return None


def _leaves(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments or results of an op, one by one: they hold lists, and nothing deeper."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from argument
        else:
            yield argument


@cache
def _written_by_schema(func: Any) -> tuple[int, ...]:
    """Positions of the arguments that an op changes, as its schema says."""
    infos = [argument.alias_info for argument in func._schema.arguments]
    return tuple(i for i, info in enumerate(infos) if info is not None and info.is_write)


def storage_of(tensor: torch.Tensor) -> StorageWeakRef:
    """The storage of a tensor, known by its number as long as the reference lives."""
    try:
        return StorageWeakRef(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        raise InputError(
            f"the model uses a tensor of layout {tensor.layout}, which has no storage to place: "
            "only strided tensors are captured (an embedding with sparse=False, say)"
        ) from None


@cache
def _changes_values_alone(func: Any) -> bool:
    """True if an op gives back its first argument with sizes and strides as they were."""
    schema = func._schema
    if len(schema.returns) != 1 or not schema.arguments or not schema.name.endswith("_"):
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and alias.is_write and torch.Tag.inplace_view not in func.tags


def _fits(func: Any, arguments: Sequence[Any]) -> bool:
    """True if an op goes entry by entry, and tensors are floats of the first one's type and size,
    or numbers: then it refuses none of them.
    """
    first = arguments[0]
    if torch.Tag.pointwise not in func.tags or not first.is_floating_point():
        return False
    return all(
        not isinstance(each, torch.Tensor)
        or (each.dtype == first.dtype and (each.shape == first.shape or each.dim() == 0))
        for each in arguments[1:]
    )


def _as_if_read(tensor: torch.Tensor) -> float | bool:
    """The number that an optimizer reads off a tensor: many steps done, and nothing unusual."""
    return False if tensor.dtype == torch.bool else _STEPS


def _distinct(results: tuple[Any, ...]) -> tuple[Any, ...]:
    """A tensor for every result, as kernels give; some fake kernels give one tensor twice."""
    seen: set[int] = set()
    kept = []
    for result in results:
        if isinstance(result, torch.Tensor):
            result = torch.empty_like(result) if id(result) in seen else result
            seen.add(id(result))
        kept.append(result)
    return tuple(kept)
