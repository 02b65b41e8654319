"""Records a step of a PyTorch model as a tape: the graph of `lm.capture`, with calls that run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError, importing
from loadmaster.readers.pytorch.capture import CapturedStep, StepOptions, recorded
from loadmaster.running.tape.tape import Tape, no_numbers

if TYPE_CHECKING:
    import torch

    from loadmaster.readers.pytorch.step import Step
    from loadmaster.running.tape.recording import Recording


def record(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    train: bool = True,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = (),
    optimizer: Any = None,
    schedule: Any = None,
    name: str | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Tape:
    """The tape of one step of a PyTorch model: every op of its graph as a call that can be run.

    The step runs once on fake tensors, as in `capture`; nothing is computed.

    Parameters
    ----------
    model
        Any module, its parameters on a device and not on ``torch.device("meta")``. It is left as it
        is, and the tape starts from its numbers.
    example_inputs, train, loss, targets, name, progress
        As `capture` takes them. Inputs and targets are those of every step, until others are given.
    optimizer
        As `capture` takes it. The tape goes on from where a given optimizer stands, and starts with
        its very first step where that one has done none. What its hooks do is recorded too:
        ``register_step_pre_hook`` takes gradient clipping (of the parameters in ``param_groups``).
    schedule
        Of the learning rate: a scheduler of the given optimizer, or what makes one of an optimizer.
        It steps after each update.

    Returns
    -------
    Tape
        With ``tape.graph`` equal to what ``capture`` gives.

    Raises
    ------
    InputError
        As `capture` does; and a tensor without numbers (on the meta device), a buffer that is
        assigned anew, a random op with a generator of its own, an optimizer whose first steps run
        other ops than later ones.
    MissingExtraError
        PyTorch is not installed.

    Warns
    -----
    UserWarning
        As `capture` does.

    Examples
    --------
    >>> tape = lm.record(model, images, loss=F.cross_entropy,          # doctest: +SKIP
    ...                  targets=labels, optimizer=torch.optim.Adam)
    >>> plan = lm.place(tape.graph, cluster)                           # doctest: +SKIP
    >>> tape.replay(steps=3)["loss"]                                   # doctest: +SKIP
    tensor(2.3026)
    """
    with importing("torch", "torch", "recording a model"):
        import torch
    from loadmaster.running.tape.recording import Recording

    if not isinstance(model, torch.nn.Module):
        raise InputError(f"record wants a torch.nn.Module, not a {type(model).__name__}")
    model = getattr(model, "_orig_mod", model)
    updated, scheduled = _made(model, optimizer, schedule)
    recording = Recording()
    with _buffers_checked(model, recording):
        options = StepOptions(train, loss, targets, updated)
        graph, left = recorded(model, example_inputs, options, name, progress, recording)
    host = _host(updated, scheduled, left.step, recording)

    def again(tensors: Sequence[torch.Tensor]) -> Tape:
        others, wanted = _filled((example_inputs, targets), tensors)
        with warnings.catch_warnings():  # all was said when the model was recorded first
            warnings.simplefilter("ignore", UserWarning)
            return record(
                model,
                others,
                train=train,
                loss=loss,
                targets=wanted,
                optimizer=updated,
                schedule=scheduled,
                name=name,
                progress=progress,
            )

    return Tape(
        graph=graph,
        calls=tuple(recording.calls),
        slots=recording.slots,
        placeholders=tuple(recording.placeholders),
        outputs=_outputs(left, recording),
        n_targets=left.step.n_targets,
        numbers=tuple(recording.numbers),
        host=host,
        again=again,
    )


def _filled(structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The same structure with other tensors in the places of its own."""
    from loadmaster.readers.pytorch.arguments import with_tensors

    rest = iter(tensors)
    return with_tensors(structure, lambda _: next(rest))


def _made(model: torch.nn.Module, optimizer: Any, schedule: Any) -> tuple[Any, Any]:
    """The optimizer and the schedule of the model itself, where what makes them was given."""
    import torch

    if optimizer is None:
        if schedule is not None:
            raise InputError("schedule= needs the optimizer whose learning rate it sets")
        return None, None
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer made a {type(optimizer).__name__}, no torch.optim.Optimizer")
    if schedule is None or hasattr(schedule, "load_state_dict"):
        return optimizer, schedule
    return optimizer, schedule(optimizer)


@contextmanager
def _buffers_checked(model: torch.nn.Module, recording: Recording) -> Iterator[None]:
    """Checks the model's buffers at the end of each forward pass."""
    hook = model.register_forward_hook(lambda *_: _check_buffers(model, recording))
    try:
        yield
    finally:
        hook.remove()


def _check_buffers(model: torch.nn.Module, recording: Recording) -> None:
    """Refuses a buffer in whose place the model has put another tensor."""
    slots = recording.slots
    placed = {slots[placeholder.slot].storage for placeholder in recording.placeholders}
    for name, buffer in model.named_buffers():
        with suppress(KeyError):
            if slots[recording.slot_of(buffer)].storage in placed:
                continue
        raise InputError(
            f"the model assigns its buffer {name!r} anew, which leaves the next step without it: "
            "write into it (copy_() or another in-place op)"
        )


def _host(
    optimizer: Any, schedule: Any, step: Step, recording: Recording
) -> Callable[[int], Sequence[float]]:
    """The host's numbers for each step; fills in the tensors that the optimizer starts with."""
    from torch._subclasses.fake_tensor import FakeTensor

    from loadmaster.running.tape.host import HostOptimizer

    if optimizer is None:
        return no_numbers
    parameters = {p: step.fakes[p] for group in optimizer.param_groups for p in group["params"]}
    host = HostOptimizer(optimizer, schedule, parameters, recording.updates)
    names = {fake: name for name, fake in step.state.items()}
    slots = {f"optim.{key}.{names[fake]}": tensor for (key, fake), tensor in host.slots.items()}
    for i, placeholder in enumerate(recording.placeholders):
        if placeholder.kind == "buffer" and placeholder.name in slots:
            recording.placeholders[i] = replace(placeholder, tensor=slots[placeholder.name])
        elif isinstance(placeholder.tensor, FakeTensor):
            raise InputError(
                f"nothing says with which numbers {placeholder.name!r} starts: record with a "
                f"{type(optimizer).__name__} that has done a step"
            )
    return host.numbers


def _outputs(left: CapturedStep, recording: Recording) -> dict[str, int]:
    """Slots of what a step gives, by name."""
    from torch import Tensor
    from torch.utils._pytree import tree_flatten_with_path

    leaves, _ = tree_flatten_with_path(left.output)
    named = {
        ".".join(("output", *map(_key, path))): leaf
        for path, leaf in leaves
        if isinstance(leaf, Tensor)
    }
    if left.loss is not None:
        named["loss"] = left.loss
    trained = set(left.step.fakes.values())
    for name, fake in left.step.state.items():
        if fake in trained:
            named[f"parameter.{name}"] = fake
            if fake.grad is not None:
                named[f"gradient.{name}"] = fake.grad
    return {name: recording.slot_of(tensor) for name, tensor in named.items()}


def _key(entry: Any) -> str:
    """A step of the way into a nested output: an index, a key or a name."""
    for attribute in ("idx", "key", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)
