"""One step of a PyTorch model on fake tensors, each part of it recorded in its phase."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_iter, tree_map

from loadmaster.base.errors import InputError, refusing
from loadmaster.readers.pytorch.recorder import Recorder


class Step:
    """A step on a model's parameters, buffers and inputs, which are fake tensors.

    Tensors stay on their devices; those on the meta device go where the others are, or to the CPU.
    """

    def __init__(self, model: torch.nn.Module, recorder: Recorder, fake: FakeTensorMode) -> None:
        self._model = model
        self._recorder = recorder
        self._fake = fake
        self.input_shapes: list[tuple[int, ...]] = []
        self.n_targets = 0
        stored = [*model.parameters(), *model.buffers()]
        self._home = next((t.device for t in stored if t.device.type != "meta"), None)
        #: The fake of every parameter of the model.
        self.fakes: dict[torch.nn.Parameter, torch.Tensor] = {}
        #: The fake of every parameter and buffer by its name; after the step, what stands there.
        self.state: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            fake_one = self._faked(parameter).requires_grad_(parameter.requires_grad)
            self.fakes[parameter] = self.state[name] = fake_one
            recorder.placeholder(
                fake_one, name, "parameter", name.rpartition(".")[0], parameter.detach()
            )
        for name, buffer in model.named_buffers():
            self.state[name] = self._faked(buffer)
            recorder.placeholder(
                self.state[name], name, "buffer", name.rpartition(".")[0], buffer.detach()
            )

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

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's output."""
        fastpath = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # one op for a whole encoder layer
        try:
            with self._recorder.following(self._model), self._recorder:
                return torch.func.functional_call(
                    self._model, self.state, args, kwargs, tie_weights=True
                )
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

    def _faked(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like the given one, without memory."""
        device = self._home or torch.device("cpu") if tensor.device.type == "meta" else None
        with self._fake:
            if tensor.layout is not torch.strided:
                raise InputError(
                    f"a tensor of layout {tensor.layout}: only strided ones are captured"
                )
            return torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device or tensor.device
            )

    def _input(self, name: str, value: Any) -> Any:
        """An argument with its tensors faked, each a placeholder."""

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            fake = self._faked(leaf).requires_grad_(leaf.requires_grad)
            self._recorder.placeholder(fake, name, "input", real=leaf.detach())
            self.input_shapes.append(tuple(leaf.shape))
            return fake

        return tree_map(place, value)


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
    """Training or evaluation mode, and every module's own mode again afterwards."""
    before = {module: module.training for module in model.modules()}
    model.train(train)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


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
