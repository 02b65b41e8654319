"""Calls of ATen that PyTorch executes, with shapes from Hypothesis and values from a seed."""

from __future__ import annotations

import numpy as np
import torch
from parted import Case, Outputs

#: Tensors are tiny: threads would only wait for one another.
torch.set_num_threads(1)


def to_torch(value):
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, list):
        return [to_torch(item) for item in value]
    if isinstance(value, dict):
        return {key: to_torch(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


def run_of(kind, overload=None):
    """What executes the op of a kind."""
    base, _, own = kind.removeprefix("aten.").partition(".")
    op = getattr(getattr(torch.ops.aten, base), own or overload or "default")

    def run(args, keywords) -> Outputs:
        made = op(*to_torch(args), **to_torch(keywords))
        several = made if isinstance(made, (tuple, list)) else [made]
        return [None if each is None else each.detach().numpy().copy() for each in several]

    return run


def call(kind, *args, overload=None, keywords=None, **options):
    """A call, by a kind without its overload, of one of its overloads."""
    options.setdefault("run", run_of(kind, overload))
    named = kind if "." in kind.removeprefix("aten.") else f"{kind}.{overload or 'default'}"
    return Case(named, list(args), keywords=keywords or {}, **options)


def sums_of(values, over):
    """The sum over parts of what each has, a term summed over some axes."""
    return sum(value.sum(over, keepdims=True) for value in values)
