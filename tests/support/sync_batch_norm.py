"""Lets PyTorch's SyncBatchNorm run on CPUs, for which it has no kernels: its own code and messages.

The five kernels are those of batch norm by parts, as the paper has them.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn.parallel import DistributedDataParallel

_KEPT = []


@contextmanager
def on_cpus():
    """Gives PyTorch the kernels, for good, and takes its checks of devices away, for a while."""
    if not _KEPT:
        library = torch.library.Library("aten", "IMPL")
        for name, kernel in _KERNELS.items():
            library.impl(f"batch_norm_{name}", kernel, "CPU")
        _KEPT.append(library)
    with (
        patch.object(torch._C, "_get_privateuse1_backend_name", lambda: "cpu"),
        patch.object(DistributedDataParallel, "_passing_sync_batchnorm_handle"),
    ):
        yield


def _along(value, x):
    """A value per channel, as it goes with a tensor."""
    return value.view(1, -1, *[1] * (x.dim() - 2))


def _sum(x):
    return x.sum([d for d in range(x.dim()) if d != 1])


def _stats(x, eps):
    n = x.numel() // x.size(1)
    mean = _sum(x) / n
    return mean, (_sum((x - _along(mean, x)) ** 2) / n + eps).rsqrt()


def _gathered(x, means, invstds, running_mean, running_var, momentum, eps, counts):
    weights = (counts / counts.sum()).unsqueeze(1)
    mean = (weights * means).sum(0)
    variance = (weights * (invstds**-2 - eps + (means - mean) ** 2)).sum(0)
    if running_mean is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * counts.sum() / (counts.sum() - 1), momentum)
    return mean, (variance + eps).rsqrt()


def _normed(x, weight, bias, mean, invstd, eps):
    return (x - _along(mean, x)) * _along(invstd * weight, x) + _along(bias, x)


def _reduced(grad, x, mean, invstd, weight, input_g, weight_g, bias_g):
    total, with_x = _sum(grad), _sum(grad * (x - _along(mean, x)))
    return total, with_x, with_x * invstd, total.clone()


def _backward(grad, x, mean, invstd, weight, total, with_x, count):
    n = count.sum()
    centred = (x - _along(mean, x)) * _along(invstd**2 * with_x / n, x)
    return (grad - _along(total / n, x) - centred) * _along(invstd * weight, x)


_KERNELS = {
    "stats": _stats,
    "gather_stats_with_counts": _gathered,
    "elemt": _normed,
    "backward_reduce": _reduced,
    "backward_elemt": _backward,
}
