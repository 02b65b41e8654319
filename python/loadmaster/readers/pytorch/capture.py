"""Captures a step of a PyTorch model, forward to update, as PyTorch dispatches it.

The step runs once on fake tensors: they have shapes, strides and storages but no memory, so a model
of any size is captured on any machine. What is recorded are the ops that reach the device, after
autograd and PyTorch's own decompositions, exactly as a profiler of a real step would see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError, importing
from loadmaster.base.warnings import warn
from loadmaster.model.graph import FUSED_UPDATES, OpGraph
from loadmaster.model.module_classes import CLASSES, by_pattern
from loadmaster.readers.pytorch.aten_graph import AtenGraph

if TYPE_CHECKING:
    import torch

    from loadmaster.readers.pytorch.recorder import Listener
    from loadmaster.readers.pytorch.step import Step


def capture(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    train: bool = True,
    loss: Callable[..., torch.Tensor] | None = None,
    targets: Any = (),
    optimizer: Any = None,
    name: str | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> OpGraph:
    """The graph of one step of a PyTorch model, without running it or allocating its weights.

    Parameters
    ----------
    model
        Any module, built on the CPU, a GPU or ``torch.device("meta")``. It is left as it is.
    example_inputs
        A tensor, a tuple of positional or a mapping of named arguments, which may be objects of
        any class that hold tensors, such as a cache. Only sizes matter, and tensors on the meta
        device will do. The arguments are copied and stay as they are.
    train
        Forward, loss and backward in training mode; False: forward in evaluation mode.
    loss
        Takes the model's output and ``targets``, gives a scalar. Without it the output's own loss
        is taken (a scalar, an attribute or a key ``loss``), else the mean of all it puts out.
    targets
        A tensor or a tuple of them, further arguments of ``loss``.
    optimizer
        Its update is captured too: an optimizer of the model's parameters, or what makes one of
        parameters, as ``torch.optim.Adam``. The step is one in the middle of training: slots are
        there. Updates are captured parameter by parameter (``foreach`` and ``fused`` off).
    name
        Of the graph; the model's class by default.
    progress
        Called now and then with the phase ("f", "b", "o") and the number of ops so far.

    Returns
    -------
    OpGraph
        Ops by PyTorch's names in the order they run, with phase "f", "b" or "o", the module each
        belongs to (a backward op to that of its forward op), FLOPs, bytes, views and in-place ops;
        a parameter, its slots and its update share a device. ``meta["classes"]`` has the classes of
        modules (:mod:`loadmaster.model.module_classes`).

    Raises
    ------
    InputError
        What runs depends on values (``item()``, ``nonzero()``), there is nothing to differentiate,
        or the optimizer is not of this model. Errors of the model's own code and of PyTorch are
        this one too: one line, with the module.
    MissingExtraError
        PyTorch is not installed.

    Warns
    -----
    UserWarning
        Kinds of ops that the costs do not know, with counts; a loss that was made up.

    Examples
    --------
    >>> import torch, loadmaster as lm                                # doctest: +SKIP
    >>> with torch.device("meta"):
    ...     model = torch.nn.Transformer(d_model=8192, nhead=64)      # doctest: +SKIP
    >>> x = torch.empty(128, 8, 8192, device="meta")                  # doctest: +SKIP
    >>> lm.capture(model, (x, x), optimizer=torch.optim.Adam)         # doctest: +SKIP
    OpGraph('Transformer', 5031 ops, 6386 edges)
    """
    options = StepOptions(train, loss, targets, optimizer)
    return recorded(model, example_inputs, options, name, progress)[0]


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The parts of a step: a backward pass, the loss and its further arguments, an optimizer."""

    train: bool
    loss: Callable[..., torch.Tensor] | None
    targets: Any
    optimizer: Any


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Results of a step on fake tensors: its output, its loss, and the optimizer that updated."""

    step: Step
    output: Any
    loss: torch.Tensor | None
    optimizer: torch.optim.Optimizer | None


def recorded(
    model: torch.nn.Module,
    example_inputs: Any,
    options: StepOptions,
    name: str | None,
    progress: Callable[[str, int], None] | None,
    listener: Listener | None = None,
) -> tuple[OpGraph, CapturedStep]:
    """The graph that `capture` gives, and the results of the step; a listener hears of every op."""
    with importing("torch", "torch", "capturing a model"):
        import torch
    from loadmaster.readers.pytorch.failures import in_one_line
    from loadmaster.readers.pytorch.fakes import Fakes
    from loadmaster.readers.pytorch.recorder import Recorder
    from loadmaster.readers.pytorch.step import Step, in_mode, on_fakes

    if not isinstance(model, torch.nn.Module):
        raise InputError(f"capture wants a torch.nn.Module, not a {type(model).__name__}")
    train, loss, optimizer = options.train, options.loss, options.optimizer
    model = getattr(model, "_orig_mod", model)  # the model that torch.compile has wrapped
    if not train and (loss is not None or optimizer is not None):
        raise InputError("an inference (train=False) has no loss and no optimizer")
    graph = AtenGraph()
    notes: list[str] = []
    meta: dict[str, Any] = {
        "model": type(model).__name__,
        "framework": f"torch {torch.__version__}",
        CLASSES: by_pattern(_classes(model)),
    }
    recorder = Recorder(graph, Fakes(model), progress, listener)
    step = Step(model, recorder, recorder.fakes)
    args, kwargs = step.inputs(example_inputs)
    wanted = step.targets(options.targets)
    scalar = updated = None
    with (
        in_one_line(model, recorder),
        in_mode(model, train),
        recorder.fakes.mode,
        torch.set_grad_enabled(train),
    ):
        with step.in_place():
            output = step.forward(args, kwargs)
            if train:
                scalar, note = step.loss(output, loss, wanted)
                notes += [note] * bool(note)
                step.backward(scalar)
        if optimizer is not None:
            with on_fakes(optimizer, step.fakes) as updated:
                step.update(updated)
            meta["optimizer"] = type(updated).__name__
            if updated.defaults.get("fused"):
                meta[FUSED_UPDATES] = True
    notes += graph.notes()
    warn(*notes)
    meta |= {
        "batch": next((shape[0] for shape in step.input_shapes if shape), None),
        "dtype": graph.float_type(),
        "mode": "train" if train else "infer",
        "assumed": notes,
    }
    title = name or type(model).__name__
    whole = OpGraph.from_document(graph.document(title, meta), title)
    return whole, CapturedStep(step, output, scalar, updated)


def _classes(model: torch.nn.Module) -> dict[str, str]:
    """The class of each module below a model that has parameters, by its path."""
    return {
        path: type(module).__name__
        for path, module in model.named_modules()
        if path and next(module.parameters(), None) is not None
    }
