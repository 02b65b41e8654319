"""Small models of JAX, a training step of each, and that step on eight devices of the host.

Devices of the host are made when JAX begins, so steps run in a process of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

#: Devices of the host.
DEVICES = 8

#: XLA's own flags: so many devices, and code that is made soon rather than runs fast.
FLAGS = (
    f"--xla_force_host_platform_device_count={DEVICES}",
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
)

#: Seconds that a call has.
DEADLINE = 240


# ---- models -------------------------------------------------------------------------------------


def transformer(parameters, words, targets):
    """Two layers of attention and an MLP behind norms, between an embedding and a head."""
    import jax

    x = parameters["embed"][words]
    for number, layer in enumerate(parameters["layers"]):
        with jax.named_scope(f"layer{number}"):
            x = of_attention(x, layer)
    return off_targets(x @ parameters["head"], targets)


def decoder(parameters, words, targets):
    """The same with its layers in a scan, each computed again for its gradients."""
    import jax

    @jax.checkpoint
    def layer(x, one):
        return of_attention(x, one), None

    x, _ = jax.lax.scan(layer, parameters["embed"][words], parameters["layers"])
    return off_targets(x @ parameters["head"], targets)


def of_attention(x, layer):
    """A layer of attention and an MLP."""
    import jax
    import jax.numpy as jnp

    def norm(x, scale):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    y = norm(x, layer["norm1"])
    q, k, v = (jnp.einsum("bsd,dhk->bshk", y, layer[name]) for name in "qkv")
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / q.shape[-1] ** 0.5
    seen = jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores), v)
    x = x + jnp.einsum("bshk,hkd->bsd", seen, layer["o"])
    y = norm(x, layer["norm2"])
    return x + jax.nn.gelu(y @ layer["up"] + layer["bias"]) @ layer["down"]


def off_targets(logits, targets):
    """The mean loss of logits."""
    import jax
    import jax.numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean()


def mlp(parameters, x, y):
    """Three products."""
    import jax
    import jax.numpy as jnp

    for number, (weight, bias) in enumerate(parameters):
        x = x @ weight + bias
        x = jax.nn.relu(x) if number + 1 < len(parameters) else x
    return jnp.mean((x - y) ** 2)


def convnet(parameters, images, targets):
    """Two convolutions with a norm over the batch, a mean, a head."""
    import jax
    import jax.numpy as jnp

    x = images
    for layer in parameters["layers"]:
        x = jax.lax.conv_general_dilated(
            x, layer["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = x - x.mean((0, 1, 2))
        x = jax.nn.relu(x * jax.lax.rsqrt((x * x).mean((0, 1, 2)) + 1e-5) * layer["scale"])
    logits = x.mean((1, 2)) @ parameters["head"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], -1).mean()


def scanned(parameters, x, y):
    """Layers in a scan, each computed again for its gradients, and a branch behind them."""
    import jax
    import jax.numpy as jnp

    @jax.checkpoint
    def layer(x, one):
        return x + jax.nn.relu(x @ one["up"]) @ one["down"], None

    x, _ = jax.lax.scan(layer, x, parameters)
    x = jax.lax.cond(x.shape[0] * jnp.sum(y) > 1e9, lambda x: -x, jnp.tanh, x)
    return jnp.mean((x - y) ** 2)


def experts(parameters, x, y):
    """Two mixtures of experts, of which each token takes the best one."""
    import jax
    import jax.numpy as jnp

    for layer in parameters:
        scores = jax.nn.softmax(x @ layer["router"])
        chosen = jax.nn.one_hot(jnp.argmax(scores, -1), scores.shape[-1]) * scores
        hidden = jax.nn.relu(jnp.einsum("te,xef->xtf", x, layer["up"]))
        made = jnp.einsum("xtf,xfe->xte", hidden, layer["down"])
        x = x + jnp.einsum("xte,tx->te", made, chosen)
    return jnp.mean((x - y) ** 2)


def mapped(parameters, x, y):
    """Layers of which one half is mapped over devices by hand, and takes a mean over them."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec as P

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))

    def part(w, x):
        return jnp.tanh(x @ w) - jax.lax.pmean(x.mean(), "x")

    by_hand = jax.shard_map(part, mesh=mesh, in_specs=(P(), P("x")), out_specs=P("x"))
    for layer in parameters:
        x = by_hand(layer["up"], x) @ layer["down"]
    return jnp.mean((x - y) ** 2)


def constrained(parameters, x, y):
    """Heads between two products, and layers in a scan, on a mesh of four devices: the model says
    how arrays lie.
    """
    import jax
    import jax.numpy as jnp

    def lies(x, *axes):
        return jax.lax.with_sharding_constraint(x, on_four(*axes))

    def layer(x, one):
        hidden = lies(jax.nn.relu(x @ one["up"]), "data", "model")
        return lies(x + hidden @ one["down"], "data", None), None

    heads = lies((x @ parameters["q"]).reshape(*x.shape[:-1], 4, -1), "data", "model")
    x = lies(heads.reshape(*x.shape[:-1], -1) @ parameters["o"], ("data", "model"))
    x, _ = jax.lax.scan(layer, x, parameters["layers"])
    return jnp.mean((lies(x, jax.sharding.PartitionSpec.UNCONSTRAINED, "model") - y) ** 2)


def on_four(*axes):
    """A sharding on the first four devices."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    return NamedSharding(mesh, PartitionSpec(*axes))


LOSSES = {
    "constrained": constrained,
    "transformer": transformer, "mlp": mlp, "convnet": convnet, "scanned": scanned,
    "experts": experts, "decoder": decoder, "mapped": mapped,
}  # fmt: skip


def given(name):
    """Parameters, momentum, and two inputs of a model, as NumPy arrays: the same every time."""
    import jax
    import numpy as np

    random = np.random.default_rng(0)

    def array(*shape):
        return (random.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32)

    width, heads, words = 32, 8, 64
    if name in ("transformer", "decoder"):
        layer = {
            **{one: lambda: array(width, heads, width // heads) for one in "qkv"},
            "o": lambda: array(heads, width // heads, width),
            "norm1": lambda: np.ones(width, np.float32),
            "norm2": lambda: np.ones(width, np.float32),
            "up": lambda: array(width, 4 * width),
            "bias": lambda: array(4 * width),
            "down": lambda: array(4 * width, width),
        }
        parameters = {
            "embed": array(words, width),
            "layers": [{one: make() for one, make in layer.items()} for _ in range(2)],
            "head": array(width, words),
        }
        if name == "decoder":
            stacked = jax.tree.map(lambda *one: np.stack(one), *parameters["layers"])
            parameters["layers"] = stacked
        inputs = [random.integers(0, words, (8, 16)).astype(np.int32) for _ in range(2)]
    elif name == "mlp":
        parameters = [(array(a, b), array(b)) for a, b in ((32, 64), (64, 64), (64, 16))]
        inputs = [array(16, 32), array(16, 16)]
    elif name == "experts":
        shapes = {"router": (32, 8), "up": (8, 32, 64), "down": (8, 64, 32)}
        parameters = [{one: array(*shape) for one, shape in shapes.items()} for _ in range(2)]
        inputs = [array(64, 32), array(64, 32)]
    elif name == "mapped":
        parameters = [{"up": array(32, 64), "down": array(64, 32)} for _ in range(2)]
        inputs = [array(16, 32), array(16, 32)]
    elif name == "constrained":
        parameters = {
            "q": array(32, 64),
            "o": array(64, 32),
            "layers": {"up": 0.2 * array(3, 32, 64), "down": 0.2 * array(3, 64, 32)},
        }
        inputs = [array(16, 32), array(16, 32)]
    elif name == "scanned":
        parameters = {"up": 0.2 * array(3, 32, 64), "down": 0.2 * array(3, 64, 32)}
        inputs = [array(16, 32), array(16, 32)]
    else:
        parameters = {
            "layers": [
                {"kernel": array(3, 3, a, b), "scale": np.ones(b, np.float32)}
                for a, b in ((3, 16), (16, 32))
            ],
            "head": array(32, 8),
        }
        inputs = [array(16, 16, 16, 3), random.integers(0, 8, (16,)).astype(np.int32)]
    return parameters, jax.tree.map(np.zeros_like, parameters), *inputs


def step_of(name):
    """A step of SGD with momentum: parameters, momentum, which begins as the gradients; the loss.

    It may overwrite parameters and momentum.
    """
    import jax

    def step(parameters, momentum, x, y):
        loss, gradients = jax.value_and_grad(LOSSES[name])(parameters, x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, parameters, momentum), momentum, loss

    return jax.jit(step, donate_argnums=(0, 1))


ARGUMENTS = ("parameters", "momentum", "x", "y")


# ---- the process of eight devices ----------------------------------------------------------------


_WORKERS = []


def on_devices(function, *arguments):
    """What a function of a module of these returns in a process with devices of the host.

    The process is there for all calls, until one fails or a deadline passes.
    """
    if not _WORKERS:
        _WORKERS.append(_Worker())
    try:
        return _WORKERS[0].found(function, arguments)
    except BaseException:
        _WORKERS.pop().end()
        raise


class _Worker:
    """A process with devices of the host."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        flags = os.environ.get("XLA_FLAGS", "")
        before = os.environ.get("PYTHONPATH", "")
        here = str(Path(__file__).parent)
        os.environ["XLA_FLAGS"] = " ".join((flags, *FLAGS))
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [before])])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        try:
            self.process.start()
        finally:
            os.environ["XLA_FLAGS"], os.environ["PYTHONPATH"] = flags, before
        theirs.close()

    def found(self, function, arguments):
        """What the function returns there."""
        self.pipe.send((function, arguments))
        try:
            assert self.pipe.poll(DEADLINE), "the process with devices of the host did not end"
            return self.pipe.recv()
        except EOFError:
            raise AssertionError(
                "the process with devices of the host failed: see its output"
            ) from None

    def end(self):
        """Ends it, wherever it is."""
        self.process.kill()
        self.process.join()


def _work(pipe):
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["JAX_PLATFORMS"] = "cpu"
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(function(*arguments))


def functions(written):
    """The functions of a written file."""
    names = {"__name__": "written"}
    exec(compile(written, "written.py", "exec"), names)
    return names


def text_of(name):
    """The program of a step, for the devices here."""
    return step_of(name).lower(*given(name)).as_text(debug_info=True)


def steps(files):
    """What a step of each model is off by, as its file has it on the devices, and of its arguments
    the bytes of a device. Names are those of models, and what follows a dash.
    """
    return {name: _step(name.partition("-")[0], functions(text)) for name, text in files.items()}


def kept(text):
    """What a step of the model "constrained" is off by, and how XLA has each array behind a
    constraint of the model, beside what the model says: an axis that it leaves open is left out.
    """
    import jax

    file, rows = functions(text), []
    own = file["own"]

    def inspected(mesh, array, sharding):
        array = own(mesh, array, sharding)
        axes = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
        opened = jax.sharding.PartitionSpec.UNCONSTRAINED

        def row(lies):
            cuts = [*lies.spec, *[None] * (array.ndim - len(lies.spec))]
            pairs = [(a, b) for a, b in zip(axes, cuts, strict=True) if a is not opened]
            rows.append(tuple(tuple(map(str, side)) for side in zip(*pairs, strict=True)))

        jax.debug.inspect_array_sharding(array, callback=row)
        return array

    file["own"] = inspected
    off = _step("constrained", file)["off"]
    return off, rows


def sent(files):
    """Bytes that a step of each model sends between devices, as XLA compiled it."""
    import xla_collectives

    rows = {}
    for name, text in files.items():
        compiled, mesh, *_ = compiled_step(name.partition("-")[0], functions(text))
        found = xla_collectives.collectives(compiled.as_text(), mesh.devices.size)
        rows[name] = xla_collectives.sent(found)
    return rows


def _step(name, file):
    import jax

    expected = jax.tree.map(jax.device_get, step_of(name)(*jax.device_put(given(name))))
    compiled, _, on, trees = compiled_step(name, file)
    found = compiled(*jax.device_put(trees, on))
    for tree, sharding in zip(found[:2], on[:2], strict=True):
        jax.tree.map(lambda a, s: _assert_lies(a, s), tree, sharding)
    memory = compiled.memory_analysis()
    return {"off": off(found, expected), "arguments": memory.argument_size_in_bytes}


def compiled_step(name, file):
    """A step as the file has it, the mesh, and the shardings of its arguments, and these."""
    import jax

    mesh = file["mesh"]()
    trees = given(name)
    on = tuple(file["shardings"](mesh, t, n) for n, t in zip(ARGUMENTS, trees, strict=True))
    step = step_of(name)
    if "PLACES" in file:
        constrained = []
        constrain = file["constrain"]

        def noted(on, array, op):
            constrained.append(op)
            return constrain(on, array, op)

        file["constrain"] = noted
        step = file["constrained"](mesh, step)
    step = jax.jit(
        step,
        in_shardings=on,
        out_shardings=(on[0], on[1], None),
        donate_argnums=(0, 1),
    )
    compiled = step.lower(*trees).compile()
    if "PLACES" in file:
        assert sorted(constrained) == sorted(file["PLACES"].values())
    return compiled, mesh, on, trees


def _assert_lies(array, sharding):
    assert array.sharding.is_equivalent_to(sharding, array.ndim)


def off(found, expected):
    """The largest error, as a share of 1e-4 of the number and 1e-6 of the array's largest."""
    import jax
    import numpy as np

    def one(a, b):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        return float((np.abs(a - b) / (1e-4 * np.abs(b) + 1e-6 * np.abs(b).max() + 1e-30)).max())

    return max(jax.tree.leaves(jax.tree.map(one, found, expected)))
