"""Ops whose parts exchange sums while they run: what a part brings, and what it does with the sums.

Of a normalisation's forward pass, a part brings means and squared deviations; of its backward pass,
sums of gradients. Of a softmax, the largest value and a sum of exponentials; of a loss, sums and
weights. What all parts bring is small, and an all-reduce adds it up before the op itself runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.running.tape.calls import Call, Ref


@dataclass(frozen=True)
class PartOfWhole:
    """One of several parts of a whole.

    Attributes
    ----------
    fraction : float
        Of the elements over which sums are taken.
    weight : float
        What its gradients count by: 1, or the share of a replica whose loss is a mean of its own.
    is_whole : bool
        Whether what lacks the dimension is wanted as a sum over all parts.
    box : tuple of int64 columns
        Which places along each axis of the first argument it has; empty: not known.
    """

    fraction: float
    weight: float = 1.0
    is_whole: bool = True
    box: tuple[NDArray[np.int64], ...] = ()


@dataclass(frozen=True)
class Exchange:
    """The exchange of the parts of a call. Each brings ``n`` tensors, and ``n`` are known then.

    Attributes
    ----------
    brings : callable
        Of a part and the arguments of the call, the tensors that it brings.
    total : callable
        Of the parts and what each brings, what all of them know then.
    ends : callable
        Of a part, what is known and the arguments, what the call gives.
    """

    brings: Callable[..., list[Tensor]]
    total: Callable[[Sequence[PartOfWhole], Sequence[Sequence[Tensor]]], list[Tensor]]
    ends: Callable[..., Any]
    n: int = 2

    def calls(
        self,
        call: Call,
        at: int,
        parts: Sequence[PartOfWhole],
        member: int,
        brought: Sequence[Sequence[int]],
        known: Sequence[int],
    ) -> Iterator[Call]:
        """The calls of part ``at`` in the place of one: of its share, of its member, and its own.

        ``brought`` are slots of what each part brings, ``known`` those of what its member gives.
        """
        shares = [[Ref(slot) for slot in slots] for slots in brought]
        brings = partial(self.brings, parts[at])
        yield Call(member, brings, call.args, call.kwargs, tuple(brought[at]), True, brings=True)
        total = partial(self.total, parts)
        yield Call(member, total, (shares,), {}, tuple(known), True, shares=True)
        ends = partial(self.ends, parts[at])
        yield replace(call, function=ends, args=([Ref(slot) for slot in known], *call.args))


def exchange_of(function: Any) -> Exchange | None:
    """The exchange of an op of PyTorch; None: there is none that is known."""
    return _KNOWN.get(str(getattr(function, "overloadpacket", function)).removeprefix("aten."))


def _sums(parts: Sequence[PartOfWhole], brought: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Sums of what is brought, each weighted as its gradients are."""
    sums = []
    for each in zip(*brought, strict=True):
        sums.append(sum(t * part.weight for part, t in zip(parts, each, strict=True)))
    return sums


def _moments(parts: Sequence[PartOfWhole], brought: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Mean and variance of all, of those of parts (Chan, Golub, LeVeque 1979)."""
    means, variances = (torch.stack(list(each)) for each in zip(*brought, strict=True))
    shape = (-1, *(1,) * (means.dim() - 1))
    weights = torch.tensor([part.fraction for part in parts], dtype=means.dtype).view(shape)
    mean = (means * weights).sum(0)
    return [mean, ((variances + (means - mean) ** 2) * weights).sum(0)]


# -- batch norms -----------------------------------------------------------------------------------


def _others(x: Tensor) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != 1]


def _by_channel(x: Tensor, values: Tensor) -> Tensor:
    return values.view(1, -1, *(1,) * (x.dim() - 2))


def _batch_norm_brings(part: PartOfWhole, x: Tensor, *args: Any) -> list[Tensor]:
    variance, mean = torch.var_mean(x, _others(x), correction=0)
    return [mean, variance]


@dataclass(frozen=True, slots=True)
class _BatchNorm:
    """The arguments of the op of PyTorch, in its order."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    train: bool
    momentum: float
    eps: float


def _batch_norm_ends(
    part: PartOfWhole, known: Sequence[Tensor], *args: Any
) -> tuple[Tensor, Tensor, Tensor]:
    call, (mean, variance) = _BatchNorm(*args), known
    x, weight, bias = call.x, call.weight, call.bias
    count = x.numel() / x.shape[1] / part.fraction
    if call.running_mean is not None:
        call.running_mean.lerp_(mean, call.momentum)
    if call.running_var is not None:
        call.running_var.lerp_(variance * (count / (count - 1)), call.momentum)
    scale = (variance + call.eps).rsqrt()
    factor = scale if weight is None else scale * weight
    shift = -mean * factor if bias is None else bias - mean * factor
    normed = torch.addcmul(_by_channel(x, shift), x, _by_channel(x, factor))
    return normed, mean, scale


@dataclass(frozen=True, slots=True)
class _BatchNormBackward:
    """The arguments of the op of PyTorch, in its order; ``mask`` says which gradients it gives."""

    gradient: Tensor
    x: Tensor
    weight: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    mean: Tensor
    scale: Tensor
    train: bool
    eps: float
    mask: Sequence[bool]

    @property
    def normed(self) -> Tensor:
        return (self.x - _by_channel(self.x, self.mean)) * _by_channel(self.x, self.scale)


def _batch_norm_backward_brings(part: PartOfWhole, *args: Any) -> list[Tensor]:
    call = _BatchNormBackward(*args)
    over = _others(call.x)
    return [call.gradient.sum(over), (call.gradient * call.normed).sum(over)]


def _batch_norm_backward_ends(
    part: PartOfWhole, known: Sequence[Tensor], *args: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    call = _BatchNormBackward(*args)
    x, weight, mask = call.x, call.weight, call.mask
    count = x.numel() / x.shape[1] / part.fraction * part.weight
    of_mean, of_normed = (_by_channel(x, total / count) for total in known)
    factor = call.scale if weight is None else call.scale * weight
    of_input = (call.gradient - of_mean - call.normed * of_normed) * _by_channel(x, factor)
    own = known
    if not part.is_whole and (mask[1] or mask[2]):
        own = _batch_norm_backward_brings(part, *args)
    return (of_input if mask[0] else None, own[1] if mask[1] else None, own[0] if mask[2] else None)


# -- layer norms -----------------------------------------------------------------------------------


def _last(sizes: Sequence[int]) -> list[int]:
    return list(range(-len(sizes), 0))


def _layer_norm_brings(
    part: PartOfWhole, x: Tensor, sizes: Sequence[int], *args: Any
) -> list[Tensor]:
    variance, mean = torch.var_mean(x, _last(sizes), correction=0, keepdim=True)
    return [mean, variance]


def _layer_norm_ends(
    part: PartOfWhole,
    known: Sequence[Tensor],
    x: Tensor,
    sizes: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = known
    scale = (variance + eps).rsqrt()
    normed = (x - mean) * scale
    normed = normed if weight is None else normed * weight
    return normed if bias is None else normed + bias, mean, scale


@dataclass(frozen=True, slots=True)
class _LayerNormBackward:
    """The arguments of the op of PyTorch, in its order; ``mask`` says which gradients it gives."""

    gradient: Tensor
    x: Tensor
    sizes: Sequence[int]
    mean: Tensor
    scale: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mask: Sequence[bool]

    @property
    def weighted(self) -> Tensor:
        return self.gradient if self.weight is None else self.gradient * self.weight

    @property
    def normed(self) -> Tensor:
        return (self.x - self.mean) * self.scale


def _layer_norm_backward_brings(part: PartOfWhole, *args: Any) -> list[Tensor]:
    call = _LayerNormBackward(*args)
    over = _last(call.sizes)
    sums = (call.weighted, call.weighted * call.normed)
    return [each.sum(over, keepdim=True) for each in sums]


def _layer_norm_backward_ends(
    part: PartOfWhole, known: Sequence[Tensor], *args: Any
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    call = _LayerNormBackward(*args)
    x, mask, normed = call.x, call.mask, call.normed
    count = x.numel() / call.scale.numel() / part.fraction
    of_input = (call.weighted - known[0] / count - normed * (known[1] / count)) * call.scale
    rows = list(range(x.dim() - len(call.sizes)))
    return (
        of_input if mask[0] else None,
        (call.gradient * normed).sum(rows) if mask[1] else None,
        call.gradient.sum(rows) if mask[2] else None,
    )


# -- softmax ---------------------------------------------------------------------------------------


def _softmax_brings(part: PartOfWhole, x: Tensor, axis: int, *args: Any) -> list[Tensor]:
    most = x.amax(axis, keepdim=True)
    return [most, (x - most).exp().sum(axis, keepdim=True)]


def _softmax_total(
    parts: Sequence[PartOfWhole], brought: Sequence[Sequence[Tensor]]
) -> list[Tensor]:
    most = torch.stack([each[0] for each in brought])
    largest = most.amax(0)
    sums = torch.stack([each[1] for each in brought])
    return [largest, (sums * (most - largest).exp()).sum(0)]


def _softmax_ends(part: PartOfWhole, known: Sequence[Tensor], x: Tensor, *args: Any) -> Tensor:
    return (x - known[0]).exp() / known[1]


def _log_softmax_ends(part: PartOfWhole, known: Sequence[Tensor], x: Tensor, *args: Any) -> Tensor:
    return x - known[0] - known[1].log()


def _softmax_backward_brings(
    part: PartOfWhole, gradient: Tensor, output: Tensor, axis: int, *args: Any
) -> list[Tensor]:
    return [(gradient * output).sum(axis, keepdim=True)]


def _softmax_backward_ends(
    part: PartOfWhole, known: Sequence[Tensor], gradient: Tensor, output: Tensor, *args: Any
) -> Tensor:
    return (gradient - known[0]) * output


def _log_softmax_backward_brings(
    part: PartOfWhole, gradient: Tensor, output: Tensor, axis: int, *args: Any
) -> list[Tensor]:
    return [gradient.sum(axis, keepdim=True)]


def _log_softmax_backward_ends(
    part: PartOfWhole, known: Sequence[Tensor], gradient: Tensor, output: Tensor, *args: Any
) -> Tensor:
    return gradient - output.exp() * known[0]


# -- losses and norms ------------------------------------------------------------------------------

#: Numbers that PyTorch has for means.
_MEAN = 1


def _likelihood_brings(
    part: PartOfWhole,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
) -> list[Tensor]:
    """The sum of what the part has of the classes of its samples, and their weight."""
    axis = min(1, x.dim() - 1)
    classes = torch.from_numpy(part.box[axis])
    at = torch.searchsorted(classes, target.contiguous()).clamp(max=len(classes) - 1)
    mine = (classes[at] == target) & (target != ignored)
    picked = x.gather(axis, at.unsqueeze(axis)).squeeze(axis)
    weights = mine.to(x.dtype) if weight is None else weight[at] * mine
    return [-(picked * weights).sum(), weights.sum()]


def _likelihood_ends(
    part: PartOfWhole,
    known: Sequence[Tensor],
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
) -> tuple[Tensor, Tensor]:
    loss = known[0] / known[1] if reduction == _MEAN else known[0]
    return loss, known[1]


def _norm_brings(
    part: PartOfWhole, x: Tensor, order: float = 2, *args: Any, **kwargs: Any
) -> list[Tensor]:
    return [torch.linalg.vector_norm(x, order, *args[:2], **kwargs) ** order]


def _norm_ends(
    part: PartOfWhole,
    known: Sequence[Tensor],
    x: Tensor,
    order: float = 2,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    return known[0] ** (1 / order)


_BATCH_NORM = Exchange(_batch_norm_brings, _moments, _batch_norm_ends)
_LIKELIHOOD = Exchange(_likelihood_brings, _sums, _likelihood_ends)

_KNOWN: dict[str, Exchange] = {
    "native_batch_norm": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM,
    "native_batch_norm_backward": Exchange(
        _batch_norm_backward_brings, _sums, _batch_norm_backward_ends
    ),
    "native_layer_norm": Exchange(_layer_norm_brings, _moments, _layer_norm_ends),
    "native_layer_norm_backward": Exchange(
        _layer_norm_backward_brings, _sums, _layer_norm_backward_ends
    ),
    "_softmax": Exchange(_softmax_brings, _softmax_total, _softmax_ends),
    "_log_softmax": Exchange(_softmax_brings, _softmax_total, _log_softmax_ends),
    "_softmax_backward_data": Exchange(_softmax_backward_brings, _sums, _softmax_backward_ends, 1),
    "_log_softmax_backward_data": Exchange(
        _log_softmax_backward_brings, _sums, _log_softmax_backward_ends, 1
    ),
    "nll_loss_forward": _LIKELIHOOD,
    "nll_loss2d_forward": _LIKELIHOOD,
    "linalg_vector_norm": Exchange(_norm_brings, _sums, _norm_ends, 1),
}
