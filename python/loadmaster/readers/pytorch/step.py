"""One step of a PyTorch model on fake tensors, each part of it recorded in its phase."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_iter

from loadmaster.base.errors import InputError, refusing
from loadmaster.readers.pytorch.arguments import with_tensors
from loadmaster.readers.pytorch.fakes import Fakes
from loadmaster.readers.pytorch.recorder import Recorder, storage_of


class Step:
    """A step on a model's parameters, buffers and inputs, which are fake tensors."""

    def __init__(self, model: torch.nn.Module, recorder: Recorder, fakes: Fakes) -> None:
        self._model = model
        self._recorder = recorder
        self._fakes = fakes
        self.input_shapes: list[tuple[int, ...]] = []
        self.n_targets = 0
        #: The fake of every parameter of the model.
        self.fakes: dict[torch.nn.Parameter, torch.Tensor] = {}
        #: The fake of every parameter and buffer by its name; after the step, what stands there.
        self.state: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            fake = self._stored(name, parameter, "parameter")
            self.fakes[parameter] = fake.requires_grad_(parameter.requires_grad)
        for name, buffer in model.named_buffers():
            self._stored(name, buffer, "buffer")

    def _stored(self, name: str, tensor: torch.Tensor, kind: str) -> torch.Tensor:
        """A parameter or buffer faked, with its own attributes: quantised weights keep their scales
        there. A tensor among these is a buffer.
        """
        module = name.rpartition(".")[0]
        fake = self._fakes.like(tensor, f"the {kind} {name!r}")
        self.state[name] = fake
        self._recorder.placeholder(fake, name, kind, module, tensor.detach())
        storage = storage_of(tensor).cdata

        def place(part: torch.Tensor) -> torch.Tensor:
            if storage_of(part).cdata == storage:
                return fake
            faked = self._fakes.like(part, f"a part of the {kind} {name!r}")
            self._recorder.placeholder(faked, f"{name}.{key}", "buffer", module, part.detach())
            return faked

        for key, value in vars(tensor).items():
            if key not in vars(fake):
                setattr(fake, key, with_tensors(value, place, [tensor, self._model]))
        return fake

    def inputs(self, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments of the model, faked."""
        named = isinstance(example_inputs, Mapping)
        kwargs = dict(example_inputs) if named else {}
        listed = isinstance(example_inputs, (tuple, list))
        args = () if named else tuple(example_inputs) if listed else (example_inputs,)
        with refusing(
            f"{type(self._model).__name__} does not take these example inputs", TypeError
        ):
            bound = inspect.signature(self._model.forward).bind(*args, **kwargs)
        names = list(bound.arguments)[: len(args)]
        names += [f"{names[-1] if names else 'input'}{i}" for i in range(len(names), len(args))]
        return (
            tuple(self._input(name, each) for name, each in zip(names, args, strict=True)),
            {name: self._input(name, each) for name, each in kwargs.items()},
        )

    def targets(self, targets: Any) -> tuple[Any, ...]:
        """Further arguments of the loss, faked."""
        values = targets if isinstance(targets, (tuple, list)) else (targets,)
        before = len(self.input_shapes)
        faked = tuple(self._input("target", value) for value in values)
        self.n_targets = len(self.input_shapes) - before
        return faked

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the fakes where the model has its parameters and buffers."""
        with _reparametrize_module(self._model, self.state, tie_weights=True):
            yield

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's output."""
        fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # one op for a whole encoder layer
        try:
            with self._recorder.following(self._model), self._recorder:
                return self._model(*args, **kwargs)
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)

    def loss(self, output: Any, loss: Callable[..., Any] | None, targets: tuple[Any, ...]) -> Any:
        """The scalar to differentiate, and what was assumed to get it ("" if nothing was)."""
        with self._recorder:
            if loss is not None:
                scalar, note = loss(output, *targets), ""
            else:
                scalar, note = _own_loss(output)
        if not isinstance(scalar, torch.Tensor) or scalar.numel() != 1:
            raise InputError("the loss is no scalar: give loss=, which makes one of the output")
        if not scalar.requires_grad:
            raise InputError("the loss depends on no parameter that is trained")
        return scalar, note

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of all parameters."""
        self._recorder.phase = "b"
        with self._recorder.following(self._model), self._recorder:
            loss.backward()

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """The second step of the optimizer: the first one makes its slots."""
        if "closure" in _required(optimizer.step):
            raise InputError(
                f"{type(optimizer).__name__} evaluates the model again within its step: an update "
                "of its is no part of one step that can be captured"
            )
        recorder = self._recorder
        recorder.phase = "o"
        trained = set(self.fakes.values())
        names = {fake: name for name, fake in self.state.items() if fake in trained}
        recorder.muted = True
        with recorder:
            optimizer.step()
        recorder.muted = False
        for parameter, name in names.items():
            recorder.belongs(parameter, parameter)
            if parameter.grad is not None:
                recorder.belongs(parameter.grad, parameter)
            for key, slot in optimizer.state.get(parameter, {}).items():
                if isinstance(slot, torch.Tensor):
                    self._add_slot(key, slot, parameter, name)
        with recorder:
            optimizer.step()

    def _add_slot(self, key: str, slot: torch.Tensor, parameter: torch.Tensor, name: str) -> None:
        if is_counter(key, slot, parameter):
            self._recorder.counter(slot)
        else:
            self._recorder.placeholder(slot, f"optim.{key}.{name}", "buffer", f"optim.{name}")
            self._recorder.belongs(slot, parameter)

    def _input(self, name: str, value: Any) -> Any:
        """A copy of an argument with its tensors faked, each a placeholder."""

        def place(tensor: torch.Tensor) -> torch.Tensor:
            faked = self._fakes.like(tensor, f"the argument {name!r}")
            faked.requires_grad_(tensor.requires_grad)
            self._recorder.placeholder(faked, name, "input", real=tensor.detach())
            self.input_shapes.append(tuple(tensor.shape))
            return faked

        return with_tensors(value, place, self._model.modules())


def is_counter(key: str, slot: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True if what an optimizer keeps of a parameter is a number that the host counts."""
    return slot.dim() == 0 and (key == "step" or parameter.dim() > 0)


def _required(function: Callable[..., Any]) -> set[str]:
    """Names of the arguments of a function that have no default."""
    parameters = inspect.signature(function).parameters.values()
    return {
        p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    }


def _own_loss(output: Any) -> tuple[Any, str]:
    """The loss a model gives itself, else the mean of what it puts out."""
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if own is not None:
        return own, ""
    tensors = [t for t in tree_iter(output) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors:
        raise InputError("the model puts out nothing that depends on a parameter that is trained")
    if len(tensors) == 1 and tensors[0].dim() == 0:
        return tensors[0], ""
    means = [t.float().mean() for t in tensors]
    return sum(means[1:], means[0]), "loss: the mean of the model's output (loss= says otherwise)"


@contextmanager
def in_mode(model: torch.nn.Module, train: bool) -> Iterator[None]:
    """Training or evaluation mode; afterwards the model's modules, and the lists, mappings and
    objects that they hold, have again what they had.
    """
    before: dict[int, tuple[Any, Any]] = {}
    for module in model.modules():
        _keep(module, before, _DEPTH)
    model.train(train)
    try:
        yield
    finally:
        for holder, content in before.values():
            _put_back(holder, content)


#: How deep in its attributes a module may hold what a step changes: a cache, and its layers.
_DEPTH = 4


def _keep(holder: Any, kept: dict[int, tuple[Any, Any]], depth: int) -> None:
    """Notes what an object holds, and what is held by that."""
    attributes = getattr(holder, "__dict__", None)
    content = attributes if isinstance(attributes, dict) else holder
    is_left = isinstance(holder, (torch.Tensor, type, FunctionType, ModuleType))
    if is_left or not isinstance(content, (dict, list, set)) or id(holder) in kept or not depth:
        return
    kept[id(holder)] = holder, copy.copy(content)
    for each in content.values() if isinstance(content, dict) else content:
        if not isinstance(each, torch.nn.Module):
            _keep(each, kept, depth - 1)


def _put_back(holder: Any, content: Any) -> None:
    """Gives a holder its content again, if it has another one now."""
    attributes = getattr(holder, "__dict__", None)
    now = attributes if isinstance(attributes, dict) else holder
    if isinstance(now, list):
        now[:] = content
    else:
        now.clear()
        now.update(content)


@contextmanager
def on_fakes(
    optimizer: Any, fakes: Mapping[torch.nn.Parameter, torch.Tensor]
) -> Iterator[torch.optim.Optimizer]:
    """The optimizer on fakes of its parameters; one that was given is itself again afterwards."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        faked = optimizer([fake for fake in fakes.values() if fake.requires_grad])
        if not isinstance(faked, torch.optim.Optimizer):
            raise InputError(f"optimizer made a {type(faked).__name__}, no torch.optim.Optimizer")
        _one_by_one(faked.param_groups)
        yield faked
        return
    groups, state = optimizer.param_groups, optimizer.state
    if any(p not in fakes for group in groups for p in group["params"]):
        raise InputError("the optimizer has a parameter that is not of the model")
    optimizer.param_groups = [
        {**group, "params": [fakes[p] for p in group["params"]]} for group in groups
    ]
    optimizer.state = type(state)(
        state.default_factory, {fakes[p]: _faked_state(state[p]) for p in fakes if p in state}
    )
    _one_by_one(optimizer.param_groups)
    try:
        yield optimizer
    finally:
        optimizer.param_groups, optimizer.state = groups, state


def _faked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state that an optimizer keeps of a parameter, its tensors without memory."""
    return {
        key: torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device=v.device)
        if isinstance(v, torch.Tensor)
        else copy.deepcopy(v)
        for key, v in state.items()
    }


def _one_by_one(groups: list[dict[str, Any]]) -> None:
    """Makes an optimizer update parameter by parameter, as parameters on several devices need."""
    for group in groups:
        for flag in ("foreach", "fused"):
            if flag in group:
                group[flag] = False
