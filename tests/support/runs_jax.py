"""What is written for JAX, on devices of the host: a step of models that are written again in JAX.

Parameters have PyTorch's names and shapes.
"""

from __future__ import annotations

import jax_models
import pytest
from gloo_steps import whole_step
from target_models import built


def run(case, plan, written):
    """Loss and gradients are those of PyTorch; every array lies as the file says."""
    pytest.importorskip("jax", reason="needs JAX")
    made = built(case["model"])
    whole = whole_step(built(case["model"]))
    named = {name: p.detach().numpy() for name, p in made.module.named_parameters()}
    arrays = [named, *[x.numpy() for x in (*made.inputs, made.targets)]]
    expected = whole["loss"].numpy(), {n: g.numpy() for n, g in whole["gradients"].items()}
    names = [name for name, kind in zip(plan.graph.names, plan.graph.kinds, strict=True)
             if kind == "input"]  # fmt: skip
    found = jax_models.on_devices(step, written, case["model"], arrays, names, expected)
    assert found < 1, found


def step(written, model, arrays, names, expected):
    """What loss and gradients are off by, in a process with devices of the host."""
    import jax

    file = jax_models.functions(written)
    mesh = file["mesh"]()
    on = file["shardings"](mesh, arrays[0]), *[
        file["shardings"](mesh, array, name)
        for name, array in zip(names, arrays[1:], strict=True)
    ]  # fmt: skip
    function = jax.jit(
        jax.value_and_grad(MODELS[model]), in_shardings=on, out_shardings=(None, on[0])
    )
    loss, gradients = function(*jax.device_put(arrays, list(on)))
    for name, gradient in gradients.items():
        assert gradient.sharding.is_equivalent_to(on[0][name], gradient.ndim)
    return jax_models.off((loss, gradients), expected)


def decoder(parameters, words, targets):
    """:class:`target_models.Decoder`."""
    import jax
    import jax.numpy as jnp

    def norm(x, name):
        mean = (x * x).mean(-1, keepdims=True)
        return x * jax.lax.rsqrt(mean + jnp.finfo(x.dtype).eps) * parameters[f"{name}.weight"]

    def linear(x, name):
        return x @ parameters[f"{name}.weight"].T

    x = parameters["embed_tokens.weight"][words]
    for number in range(len({n.split(".")[1] for n in parameters if n.startswith("layers.")})):
        at = f"layers.{number}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (linear(y, f"{at}.{one}_proj").reshape(*y.shape[:2], HEADS, -1) for one in "qkv")
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(seen.reshape(y.shape), f"{at}.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")
        gate = jax.nn.silu(linear(y, f"{at}.gate_proj"))
        x = x + linear(gate * linear(y, f"{at}.up_proj"), f"{at}.down_proj")
    name = "lm_head" if "lm_head.weight" in parameters else "embed_tokens"
    return entropy(linear(norm(x, "norm"), name), targets)


def branched(parameters, x, targets):
    """:class:`target_models.Branched`."""
    import jax

    def linear(x, name):
        return x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]

    y = jax.nn.relu(linear(x, "stem"))
    deep = y
    for number in (0, 2):
        deep = jax.nn.gelu(linear(deep, f"deep.{number}"), approximate=False)
    deep = linear(deep, "deep.4")
    return entropy(linear(deep * parameters["scale"] + linear(y, "wide"), "head"), targets)


def entropy(logits, targets):
    """The mean of the cross entropy."""
    import jax
    import jax.numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


#: Heads of the decoder.
HEADS = 4

MODELS = {"decoder": decoder, "branched": branched}
