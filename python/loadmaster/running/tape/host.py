"""Numbers that an optimizer computes on the host for its calls, which differ from step to step.

Bias corrections come of Adam's count, a learning rate of its schedule. The optimizer's own code
runs once per step without its tensors: each of its ops is answered with what the recording gave,
and only counts, which are tensors of one number, are really computed. Its first step also says with
which tensors it starts.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from loadmaster.base.errors import InputError
from loadmaster.readers.pytorch.recorder import storage_of
from loadmaster.readers.pytorch.step import is_counter
from loadmaster.running.tape.recording import RecordedUpdate, with_numbers

#: Ops that fill a new tensor and read no numbers of another.
_FILLS = frozenset(
    ("zeros_like", "ones_like", "full_like", "zeros", "ones", "full", "new_zeros", "new_ones",
     "new_full", "lift_fresh", "scalar_tensor")
)  # fmt: skip


class HostOptimizer:
    """An optimizer on fakes of its parameters, step by step from where it stands.

    ``updates`` are its recorded calls with their results. ``parameters`` gives the fake of each of
    its parameters, with a gradient where the step gives it one.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Any,
        parameters: Mapping[torch.nn.Parameter, torch.Tensor],
        updates: Sequence[RecordedUpdate],
    ) -> None:
        self._optimizer = optimizer
        self._schedule = schedule
        self._parameters = parameters
        self._answers = _Answers(type(optimizer).__name__, updates)
        self._groups = [
            {**group, "params": [parameters[p] for p in group["params"]]}
            | {flag: False for flag in ("foreach", "fused") if flag in group}
            for group in optimizer.param_groups
        ]
        #: Values of slots before the first step, by their key and the fake of their parameter.
        self.slots: dict[tuple[str, torch.Tensor], torch.Tensor] = {}
        self._state: Any = defaultdict(dict)
        self._scheduled = copy.deepcopy(schedule.state_dict()) if schedule is not None else None
        self._numbers: list[tuple[float, ...]] = []
        self._take_state()
        self._first()

    def numbers(self, step: int) -> Sequence[float]:
        """The numbers in the optimizer's calls in a step, in their order; the first step is 0.

        Raises
        ------
        InputError
            The optimizer runs other ops in this step than were recorded.
        """
        while len(self._numbers) <= step:
            self._next()
        return self._numbers[step]

    def _next(self) -> None:
        with self._swapped():
            self._answers.begin(len(self._numbers))
            with self._answers, torch.no_grad():
                self._optimizer.step()
            self._numbers.append(self._answers.ended())
            if self._schedule is not None:
                self._schedule.step()

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """The optimizer and its schedule as they stand here, and themselves again afterwards."""
        optimizer, schedule = self._optimizer, self._schedule
        groups, state = optimizer.param_groups, optimizer.state
        optimizer.param_groups, optimizer.state = self._groups, self._state
        if schedule is not None:
            own = copy.deepcopy(schedule.state_dict())
            schedule.load_state_dict(self._scheduled)
        try:
            yield
        finally:
            optimizer.param_groups, optimizer.state = groups, state
            if schedule is not None:
                self._scheduled = copy.deepcopy(schedule.state_dict())
                schedule.load_state_dict(own)

    # -- where it starts

    def _take_state(self) -> None:
        """State that the optimizer keeps already, its counts as tensors that are computed with."""
        for parameter, fake in self._parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                self._state[fake][key] = value
                if not isinstance(value, torch.Tensor):
                    self._state[fake][key] = copy.deepcopy(value)
                elif is_counter(key, value, fake):
                    self._state[fake][key] = value.detach().clone()
                    self._answers.count(self._state[fake][key])
                else:
                    self.slots[key, fake] = value.detach()
                    self._state[fake][key] = _like(value, fake)

    def _first(self) -> None:
        """Runs the first step, and takes what it makes its slots with."""
        sgd = isinstance(self._optimizer, torch.optim.SGD)
        damped = [group["dampening"] for group in self._groups] if sgd else []
        for group in self._groups if sgd else ():
            if group["momentum"] and self._momentum(group):
                group["dampening"] = 0
        self._next()
        for group, dampening in zip(self._groups, damped, strict=False):
            group["dampening"] = dampening
        for fake, state in self._state.items():
            for key, value in state.items():
                if value in self._answers.makers:
                    self.slots[key, fake] = _filled(*self._answers.makers[value])

    def _momentum(self, group: dict[str, Any]) -> bool:
        """Slots of SGD's momentum that are as if there; whether none was there.

        SGD takes the first gradient for its buffer, whole. So does the rule of later steps, without
        dampening, from a buffer of negative zeros.
        """
        fakes = [p for p in group["params"] if p.grad is not None]
        new = [p for p in fakes if self._state[p].get("momentum_buffer") is None]
        for fake in new:
            self._state[fake]["momentum_buffer"] = torch.empty_like(fake)
            real = next(p for p, f in self._parameters.items() if f is fake)
            self.slots["momentum_buffer", fake] = -torch.zeros_like(real)
        if new and len(new) < len(fakes) and group["dampening"]:
            raise InputError(
                "SGD with dampening has a momentum_buffer of some parameters and not of others: "
                "let it do a step with gradients of all"
            )
        return bool(new)


def _like(value: torch.Tensor, fake: Any) -> torch.Tensor:
    with fake.fake_mode:
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )


def _filled(function: Any, args: Any, kwargs: Any) -> torch.Tensor:
    """The result of an op that reads no numbers."""

    def real(fake: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)

    filled: torch.Tensor = function(*tree_map_only(FakeTensor, real, args), **kwargs)
    return filled


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments, and what is in lists of them. The general way takes twenty times as long."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _flat(argument)
        else:
            yield argument


class _Answers(TorchDispatchMode):  # type: ignore[misc]
    """Answers the ops of an optimizer's step with recorded results, and collects their numbers."""

    def __init__(self, name: str, updates: Sequence[RecordedUpdate]) -> None:
        super().__init__()
        self._name = name
        self._updates = updates
        self._counts: dict[int, Any] = {}  # storages of what the host counts
        self._numbers: list[float] = []
        self._at = self._step = 0
        #: The op that made a new tensor, by the tensor.
        self.makers = WeakIdKeyDictionary()

    def count(self, tensor: torch.Tensor) -> None:
        """Makes a tensor known as one that the host counts with."""
        reference = storage_of(tensor)
        self._counts[reference.cdata] = reference

    def begin(self, step: int) -> None:
        self._at, self._step, self._numbers = 0, step, []

    def ended(self) -> tuple[float, ...]:
        """The numbers of a step that is over."""
        if self._at < len(self._updates):
            raise self._differs("ends", str(self._updates[self._at].call.function))
        return tuple(self._numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in _flat((*args, *kwargs.values())) if isinstance(x, torch.Tensor)]
        if self._is_host(func, tensors):
            result = func(*args, **kwargs)
            for tensor in _flat((result,)):
                if isinstance(tensor, torch.Tensor):
                    self.count(tensor)
            return result
        if func is torch.ops.aten._local_scalar_dense.default:
            raise InputError(
                f"{self._name} reads a number off a tensor in its step (item(), or a branch on "
                "it), which no tape can know: keep it a tensor (torch.where)"
            )
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if self._at < len(self._updates):
            update = self._updates[self._at]
            if update.call.function is func:
                self._at += 1
                self._collect(func, args, kwargs)
                return update.result
        if self._step == 0 and func.__name__.partition(".")[0] in _FILLS:
            result = func(*args, **kwargs)
            if not isinstance(result, FakeTensor) and result.dim() == 0:
                self.count(result)
            else:
                self.makers[result] = func, args, kwargs
            return result
        raise self._differs("calls", str(func))

    def _is_host(self, func: Any, tensors: Sequence[torch.Tensor]) -> bool:
        """True if an op counts: its tensors are counts, or a number that becomes one."""
        if func.__name__.startswith("lift_fresh"):
            return not isinstance(tensors[0], FakeTensor)
        return bool(tensors) and all(storage_of(t).cdata in self._counts for t in tensors)

    def _collect(self, func: Any, args: Any, kwargs: Any) -> None:
        named, free = with_numbers(func, args, kwargs)
        answers = [argument for key, argument in (*enumerate(args), *named.items()) if key in free]
        self._numbers += [each for each in _flat(answers) if type(each) in (int, float)]

    def _differs(self, noun: str, op: str) -> InputError:
        later = (
            f" where later ones call {self._updates[self._at].call.function}"
            if (self._at < len(self._updates) and noun == "calls")
            else ""
        )
        return InputError(
            f"step {self._step} of {self._name} {noun} {op}{later}: a tape has the same calls in "
            "every step. Record with an optimizer that has done such steps (step(), once the "
            "model has gradients), so that what it keeps is there"
        )
