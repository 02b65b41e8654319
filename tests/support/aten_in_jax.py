"""Programs of ATen ops in JAX, and a training step of one by what is written for JAX.

Nothing here needs PyTorch. Batch norms have the statistics that they have kept, and nothing is
dropped.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

import jax_models


@dataclass(frozen=True)
class Name:
    """What a value of a program is called."""

    text: str


@dataclass(frozen=True)
class Program:
    """A function of parameters and inputs: calls in an order in which they can run.

    Attributes
    ----------
    parameters, inputs : dict of str to str
        Name in the model by name in the program; of inputs that of the graph.
    constants : dict of str to numpy.ndarray
    calls : list of (str, str, tuple, dict)
        Name of the result, op, arguments and keywords; values among these are :class:`Name`.
    output : str
    """

    parameters: dict[str, str]
    inputs: dict[str, str]
    constants: dict[str, Any]
    calls: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]]
    output: str

    def __call__(self, parameters, inputs):
        """The output, of arrays by their names in the model."""
        values = dict(self.constants)
        values |= {name: parameters[of] for name, of in self.parameters.items()}
        values |= {name: inputs[of] for name, of in self.inputs.items()}

        def given(one):
            if isinstance(one, list | tuple):
                return [given(each) for each in one]
            return values[one.text] if isinstance(one, Name) else one

        for name, op, arguments, keywords in self.calls:
            keywords = {key: given(one) for key, one in keywords.items()}
            values[name] = OPS[op](*given(arguments), **keywords)
        return values[self.output]


def step(written, program, parameters, inputs, expected):
    """What loss and gradients of a step are off by; every array lies as the written file says."""
    import jax

    file = jax_models.functions(written)
    mesh = file["mesh"]()
    on = file["shardings"](mesh, parameters), file["shardings"](mesh, inputs)
    function = jax.jit(jax.value_and_grad(program), in_shardings=on, out_shardings=(None, on[0]))
    loss, gradients = function(*jax.device_put((parameters, inputs), on))
    for name, gradient in gradients.items():
        assert gradient.sharding.is_equivalent_to(on[0][name], gradient.ndim)
    return jax_models.off((loss, gradients), expected)


# ---- ops ----------------------------------------------------------------------------------------


def _jnp():
    import jax.numpy

    return jax.numpy


def _linear(x, weight, bias=None):
    y = x @ weight.T
    return y if bias is None else y + bias


def _conv2d(x, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    import jax

    y = jax.lax.conv_general_dilated(
        x, weight, stride, [(p, p) for p in padding], rhs_dilation=dilation,
        dimension_numbers=("NCHW", "OIHW", "NCHW"), feature_group_count=groups,
    )  # fmt: skip
    return y if bias is None else y + bias[:, None, None]


def _batch_norm(x, weight, bias, mean, variance, momentum, eps):
    scale = weight * (variance + eps) ** -0.5
    return (x * scale[:, None, None] + (bias - mean * scale)[:, None, None],)


def _max_pool2d(x, kernel, stride, padding=(0, 0)):
    import jax

    sides = [(0, 0), (0, 0), *((p, p) for p in padding)]
    return jax.lax.reduce_window(x, -math.inf, jax.lax.max, (1, 1, *kernel), (1, 1, *stride), sides)


def _adaptive_avg_pool2d(x, sizes):
    assert all(size == 1 for size in sizes), "only the mean of all is known here"
    return x.mean((-2, -1), keepdims=True)


def _layer_norm(x, shape, weight, bias, eps=1e-5, *_):
    axes = tuple(range(-len(shape), 0))
    x = x - x.mean(axes, keepdims=True)
    return x * ((x * x).mean(axes, keepdims=True) + eps) ** -0.5 * weight + bias


def _rms_norm(x, shape, weight, eps=None):
    axes = tuple(range(-len(shape), 0))
    eps = _jnp().finfo(x.dtype).eps if eps is None else eps
    return x * ((x * x).mean(axes, keepdims=True) + eps) ** -0.5 * weight


def _attention(q, k, v, mask=None, dropout=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Arrays are [batch, heads, tokens, width]."""
    import jax

    if enable_gqa:
        k, v = (_jnp().repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = _jnp().tril(_jnp().ones(scores.shape[-2:], bool))
    if mask is not None and mask.dtype == bool:
        scores = _jnp().where(mask, scores, -math.inf)
    elif mask is not None:
        scores = scores + mask
    return jax.nn.softmax(scores) @ v


def _cross_entropy(x, targets):
    """The classes are the second axis; the mean."""
    import jax

    chosen = _jnp().expand_dims(targets, 1) if x.ndim > 1 else targets
    return -_jnp().take_along_axis(jax.nn.log_softmax(x, axis=1), chosen, 1).mean()


def _slice(x, axis=0, start=None, end=None, by=1):
    of = [slice(None)] * x.ndim
    of[axis] = slice(start, end, by)
    return x[tuple(of)]


def _expand(x, sizes):
    before = len(sizes) - x.ndim
    known = [x.shape[i - before] if size < 0 else size for i, size in enumerate(sizes)]
    return _jnp().broadcast_to(x, known)


def _gelu(x, approximate="none"):
    import jax

    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _hardtanh(x, low=-1.0, high=1.0):
    """PyTorch's gradient at the bounds is zero, where JAX has a half."""
    import jax

    bounded = jax.lax.stop_gradient(_jnp().clip(x, low, high))
    return _jnp().where((low < x) & (x < high), x, bounded)


def _silu(x):
    import jax

    return jax.nn.silu(x)


OPS = {
    "getitem": operator.getitem,
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten._unsafe_view.default": lambda x, sizes: x.reshape(sizes),
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "aten.add.Tensor": operator.add,
    "aten.alias.default": lambda x: x,
    "aten.cat.default": lambda arrays, axis=0: _jnp().concatenate(arrays, axis),
    "aten.clone.default": lambda x, **_: x,
    "aten.conv2d.default": _conv2d,
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.embedding.default": lambda weight, words, padding=-1: weight[words],
    "aten.expand.default": _expand,
    "aten.gelu.default": _gelu,
    "aten.hardtanh.default": _hardtanh,
    "aten.layer_norm.default": _layer_norm,
    "aten.linear.default": _linear,
    "aten.max_pool2d.default": _max_pool2d,
    "aten.mean.dim": lambda x, axes, keep=False: x.mean(tuple(axes), keepdims=keep),
    "aten.mul.Tensor": operator.mul,
    "aten.neg.default": operator.neg,
    "aten.permute.default": lambda x, axes: x.transpose(axes),
    "aten.pow.Tensor_Scalar": operator.pow,
    "aten.relu.default": lambda x: _hardtanh(x, 0.0, math.inf),
    "aten.rms_norm.default": _rms_norm,
    "aten.rsqrt.default": lambda x: x**-0.5,
    "aten.scaled_dot_product_attention.default": _attention,
    "aten.select.int": lambda x, axis, at: _jnp().take(x, at, axis),
    "aten.silu.default": _silu,
    "aten.slice.Tensor": _slice,
    "aten.squeeze.dim": lambda x, axis: _jnp().squeeze(x, axis) if x.shape[axis] == 1 else x,
    "aten.transpose.int": lambda x, a, b: _jnp().swapaxes(x, a, b),
    "aten.unsqueeze.default": lambda x, axis: _jnp().expand_dims(x, axis),
    "aten.view.default": lambda x, sizes: x.reshape(sizes),
}
