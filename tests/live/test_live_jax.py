"""JAX itself: jaxprs, StableHLO and what is compiled, XLA's own analysis."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jaxprs import closed_jaxpr  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.readers.xla import hlo, jaxpr  # noqa: E402

COLUMNS = ("kinds", "outputs", "phases", "colocation")
NUMBERS = ("flops", "bytes_accessed", "output_bytes", "param_bytes", "view", "alias_of")
EDGES = ("src", "dst", "tensor", "bytes")


# ---- programs -----------------------------------------------------------------------------------


def layer(parameters, x):
    """A transformer's layer of one head, without biases."""
    q, k, v = (x @ parameters[name] for name in ("q", "k", "v"))
    scores = jax.nn.softmax(q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5)
    x = x + (scores @ v) @ parameters["o"]
    return x + jax.nn.gelu(x @ parameters["up"]) @ parameters["down"]


def weights(key, width=128):
    shapes = {**dict.fromkeys("qkvo", (width, width)), "up": (width, 512), "down": (512, width)}
    keys = jax.random.split(key, len(shapes))
    return {
        n: 0.05 * jax.random.normal(k, s) for (n, s), k in zip(shapes.items(), keys, strict=True)
    }


def train(model):
    """A step of SGD with momentum on the mean square of a model's error."""

    def step(parameters, momentum, x, y):
        with jax.named_scope("Model"):
            loss, gradients = jax.value_and_grad(lambda p: jnp.mean((model(p, x) - y) ** 2))(
                parameters
            )
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, parameters, momentum), momentum, loss

    return step


def written_out(parameters, x):
    for one in parameters:
        x = layer(one, x)
    return x


def scanned(parameters, x):
    return jax.lax.scan(lambda x, one: (layer(one, x), None), x, parameters)[0]


LAYERS = [weights(jax.random.key(i)) for i in range(2)]
STACKED = jax.tree.map(lambda *one: jnp.stack(one), *LAYERS)
X = jnp.ones((4, 64, 128))
STEPS = {"written out": (train(written_out), LAYERS), "scanned": (train(scanned), STACKED)}


def arguments(parameters):
    return parameters, jax.tree.map(jnp.zeros_like, parameters), X, X


@pytest.fixture(params=STEPS)
def step(request):
    function, parameters = STEPS[request.param]
    return jax.jit(function), arguments(parameters)


def odds(x, w, n, key):
    """A little of everything that control flow and libraries leave in a program."""

    def body(c, row):
        return jnp.tanh(c @ w + row), c.sum()

    c, rows = jax.lax.scan(body, x, jnp.ones((5, 8, 4)))
    c = jax.lax.fori_loop(0, 7, lambda i, a: a * 2 + i, c)
    c = jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 1.5), (0, c))[1]
    c = jax.lax.cond(n > 3, lambda a: a @ w, lambda a: a, c)
    jax.debug.print("sum [( {}", c.sum(), ordered=True)
    c = jax.checkpoint(lambda a: jnp.sin(a @ w))(c)
    c = c + jax.random.normal(jax.random.fold_in(key, n), (8, 4))
    image = jax.lax.conv_general_dilated(
        jnp.ones((2, 16, 16, 3)) * w[0, 0],
        jnp.ones((3, 3, 3, 8)),
        (2, 2),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    pooled = jax.lax.reduce_window(
        image, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    )
    half = jnp.einsum("bhwc,bhwd->bcd", image.astype(jnp.bfloat16), image.astype(jnp.bfloat16))
    slope = jax.grad(lambda a: (jax.nn.gelu(a) ** 2).sum())(c)
    return (
        rows,
        jnp.argsort(c),
        pooled,
        half,
        slope,
        x.at[n].add(1.0),
        jnp.cumsum(x),
        jax.nn.relu(c),
    )


ODDS = (jnp.ones((8, 4)), jnp.ones((4, 4)), 3, jax.random.key(1))


# ---- reading ------------------------------------------------------------------------------------


def quietly(read, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(*args, **options)


def from_text(tmp_path: Path, text: str, name: str = "program", **options) -> lm.OpGraph:
    path = tmp_path / name
    path.write_text(text)
    return quietly(lm.read, path, **options)


def assert_equal(left: lm.OpGraph, right: lm.OpGraph, *columns: str) -> None:
    for column in columns:
        assert getattr(left, column) == getattr(right, column), column
    for column in (*NUMBERS, *EDGES):
        np.testing.assert_array_equal(getattr(left, column), getattr(right, column), column)


def dots(graph: lm.OpGraph) -> int:
    return sum(
        int(work)
        for work, kind in zip(graph.flops, graph.kinds, strict=True)
        if kind.endswith(("dot_general", "convolution", "conv_general_dilated"))
    )


@pytest.mark.parametrize("function", ["step", "odds"])
def test_jaxprs_of_other_tests_are_as_jax_makes_them(function, step):
    """Tests without JAX read jaxprs that are made of their text."""
    closed = (
        jax.make_jaxpr(step[0])(*step[1]) if function == "step" else jax.make_jaxpr(odds)(*ODDS)
    )
    graph = quietly(lm.read, closed)
    named = quietly(lm.read, closed_jaxpr(closed.pretty_print(name_stack=True)))
    assert_equal(graph, named, "kinds", "outputs", "phases")
    n_inputs = len(closed.jaxpr.invars)
    assert graph.names[n_inputs:] == named.names[n_inputs:]
    bare = quietly(lm.read, closed_jaxpr(str(closed)))
    if function == "odds":
        assert_equal(graph, bare, "kinds", "outputs")
    assert bare.n_ops == graph.n_ops
    np.testing.assert_array_equal(bare.flops, graph.flops)


def test_inputs_have_the_names_of_their_arguments(step):
    graph = quietly(jaxpr.read, jax.make_jaxpr(step[0])(*step[1]))
    assert any(name.startswith("parameters.") and name.endswith("up") for name in graph.names)
    kinds = {name: kind for name, kind in zip(graph.names, graph.kinds, strict=True)}
    assert {kinds["x"], kinds["y"]} == {"input"}
    assert {k for n, k in kinds.items() if n.startswith("parameters.")} == {"parameter"}
    assert {k for n, k in kinds.items() if n.startswith("momentum.")} == {"buffer"}
    assert {"f", "b", "o"} == set(graph.phases)
    assert any(module.startswith("Model") for module in graph.modules)


@pytest.mark.parametrize("debug_info", [False, True])
def test_stablehlo_of_the_same_step_has_the_same_products(step, tmp_path, debug_info):
    function, given = step
    graph = quietly(jaxpr.read, jax.make_jaxpr(function)(*given))
    lowered = from_text(tmp_path, function.lower(*given).as_text(debug_info=debug_info))
    assert dots(graph) == dots(lowered) > 0
    assert int(lowered.flops.sum()) == pytest.approx(int(graph.flops.sum()), rel=1e-3)
    assert lowered.param_bytes.sum() == graph.param_bytes.sum()
    assert sorted(graph.meta["loops"].values()) == sorted(lowered.meta["loops"].values())


def test_stablehlo_of_odds_has_the_same_products(tmp_path):
    graph = quietly(jaxpr.read, jax.make_jaxpr(odds)(*ODDS))
    lowered = from_text(tmp_path, jax.jit(odds).lower(*ODDS).as_text(debug_info=True))
    assert dots(graph) == dots(lowered) > 0


def test_scanned_layers_cost_what_written_out_layers_cost():
    first = quietly(jaxpr.read, jax.make_jaxpr(written_out)(LAYERS, X))
    second = quietly(jaxpr.read, jax.make_jaxpr(scanned)(STACKED, X))
    assert first.flops.sum() == second.flops.sum() > 0


def test_flops_are_what_xla_says_of_what_it_compiled(tmp_path):
    function, parameters = STEPS["written out"]
    given = arguments(parameters)
    compiled = jax.jit(function).lower(*given).compile()
    said = compiled.cost_analysis()
    want = said["flops"] + said.get("transcendentals", 0)
    # What is compiled is XLA's own count; what is traced was not simplified yet.
    optimized = from_text(tmp_path, compiled.as_text())
    assert int(optimized.flops.sum()) == pytest.approx(want, rel=0.005)
    traced = quietly(jaxpr.read, jax.make_jaxpr(function)(*given))
    assert int(traced.flops.sum()) == pytest.approx(want, rel=0.02)


def test_donated_state_is_updated_in_place(tmp_path):
    function, parameters = STEPS["written out"]
    step = jax.jit(function, donate_argnums=(0, 1))
    given = arguments(parameters)
    for graph in (
        quietly(jaxpr.read, jax.make_jaxpr(step)(*given)),
        from_text(tmp_path, step.lower(*given).as_text()),
    ):
        changed = graph.alias_of[(graph.alias_of >= 0) & ~graph.view]
        assert sorted(changed.tolist()) == list(range(24))


def test_measured_times_of_a_profile(tmp_path):
    function, parameters = STEPS["scanned"]
    given = arguments(parameters)
    compiled = jax.jit(function).lower(*given).compile()
    jax.block_until_ready(compiled(*given))
    with jax.profiler.trace(str(tmp_path), create_perfetto_trace=False):
        for _ in range(3):
            jax.block_until_ready(compiled(*given))
    traces = list(tmp_path.rglob("*.trace.json.gz"))
    if not traces:
        pytest.skip("this JAX's profiler writes no *.trace.json.gz")
    text = tmp_path / "step.hlo.txt"
    text.write_text(compiled.as_text())
    measured = quietly(hlo.profile, traces[0], graph=text, device_type="cpu")
    graph = quietly(lm.read, text, profile=traces[0], device_type="cpu")
    assert measured.n_steps == 3
    assert set(measured.names) <= set(graph.names)
    assert graph.time["cpu"].sum() >= 0.9 * measured.median().sum() > 0


# ---- loops ---------------------------------------------------------------------------------------


@jax.custom_vjp
def gated(x):
    return x * jax.nn.sigmoid(x)


gated.defvjp(lambda x: (gated(x), x), lambda x, g: (g * jax.nn.sigmoid(x) * (1 + x - gated(x)),))


def normed(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


#: Parts of layers: what control flow and libraries wrap products in.
PARTS = {
    "product": lambda w, x: jnp.tanh(x @ w),
    "residual": lambda w, x: x + normed(x) @ w,
    "custom_vjp": lambda w, x: gated(x @ w),
    "checkpoint": lambda w, x: jax.checkpoint(lambda x: jnp.sin(x @ w) @ w)(x),
    "jit": lambda w, x: jax.jit(lambda x: jax.nn.relu(x @ w))(x),
    "scan": lambda w, x: jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=3)[0],
    "cond": lambda w, x: jax.lax.cond(x[0, 0] > 0, lambda x: jnp.tanh(x @ w), lambda x: x, x),
}


def drawn_steps(seed):
    """A layer of drawn parts as a training step with its layers written out, and with them in a
    scan.
    """
    draw = random.Random(seed)
    parts = draw.sample(sorted(PARTS), 3)
    trips, width, batch = draw.randint(2, 5), 64 * draw.randint(2, 4), 1024 * draw.randint(4, 8)

    def layer(x, ws):
        for part, w in zip(parts, ws, strict=True):
            x = PARTS[part](w, x)
        return x

    def written_out(ws, x):
        for i in range(trips):
            x = layer(x, [w[i] for w in ws])
        return x

    def scanned(ws, x):
        return jax.lax.scan(lambda x, ws: (layer(x, ws), None), x, ws)[0]

    ws = [jax.ShapeDtypeStruct((trips, width, width), jnp.float32) for _ in parts]
    x = jax.ShapeDtypeStruct((batch, width), jnp.float32)
    return parts, {
        m.__name__: jax.jit(train(m)).lower(ws, ws, x, x) for m in (written_out, scanned)
    }


def collective_bytes(plan):
    """Bytes that members of collectives make in all their runs, by kind."""
    graph, made = plan.program.graph, Counter()
    for op in np.flatnonzero(graph.is_member).tolist():
        kind = graph.collectives[op].partition("/")[0]
        made[kind] += int(graph.output_bytes[op] * graph.runs[op])
    return made


@pytest.mark.parametrize("seed", [0, 4, 5])
def test_a_scan_is_shared_as_its_layers_written_out(seed, tmp_path):
    parts, steps = drawn_steps(seed)
    plans = {}
    for name, lowered in steps.items():
        path = tmp_path / f"{name}.mlir"
        path.write_text(lowered.as_text(debug_info=True))
        graph, cluster = quietly(lm.read, path), lm.Cluster.preset("4xV100-NVLink")
        plans[name] = lm.place(graph, cluster, target="jax", tp=1, costs="roofline")
    whole, loop = plans["written_out"], plans["scanned"]
    assert loop.makespan < 0.45 * loop.single, parts
    assert loop.makespan / loop.single < 1.25 * whole.makespan / whole.single, parts
    # A trip sums the gradients of its own weights.
    assert collective_bytes(loop) == collective_bytes(whole), parts
