"""Constraints on a program of JAX as it is traced: the code that puts them there, and their places.

A place is a primitive, the array that it makes, and the number of such an equation, in the order
of the program, of how many. Names of ops are no places: what wraps a function changes them.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from loadmaster.dimensions.calls import MAPPED, keyword
from loadmaster.model.graph import OpGraph

#: Kinds by which a scan takes its part of a stack, and puts its part there.
_SLICES = ("dynamic_slice", "dynamic_update_slice")

#: Collectives of what is mapped by hand, which the graph has as sums.
_SUMS = ("psum", "psum_invariant", "pmax", "pmin", "reduce_scatter")

#: The functions of a written file, and before them its tables ``PLACES`` and ``OPERANDS``. The
#: words OWN and ARRAY stand for what :data:`_OWN` says.
_CODE = '''

def constrained(mesh, function):
    """A function whose ops make and read what the tables say: traced, and run op by op.

    It is for the function that the plan was made of, such as the whole training step.
    """
    import warnings
    from collections import Counter

    from jax.interpreters.partial_eval import dce_jaxpr

    def run(*arguments):
        closed, made = jax.make_jaxpr(function, return_shape=True)(*arguments)
        jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals), instantiate=True)
        seen, there = Counter(), Counter(map(_place, _equations(jaxpr)))
        places = [*PLACES, *OPERANDS]
        if wrong := {place[:2] for place in places if there[place[:2]] != place[3]}:
            warnings.warn(f"not as planned, and not constrained: {sorted(wrong)}", stacklevel=2)

        def bound(equation, arrays, bind):
            if equation.primitive.name == "sharding_constraint":
                return [own(mesh, arrays[0], equation.params["sharding"])]
            place = _place(equation)
            key = (*place, seen[place], there[place])
            seen[place] += 1
            on = {at: NamedSharding(mesh, spec) for at, spec in OPERANDS.get(key, {}).items()}
            move = jax.lax.with_sharding_constraint
            made = bind([move(a, on[at]) if at in on else a for at, a in enumerate(arrays)])
            first = constrain(mesh, made[0], PLACES[key]) if key in PLACES else made[0]
            return [first, *made[1:]]

        results = _run(mesh, jaxpr, closed.consts, jax.tree.leaves(arguments), bound)
        return jax.tree.unflatten(jax.tree.structure(made), results)

    return run


def own(mesh, array, sharding):
    """The array behind a constraint that the program has of itself, which is OWN."""
    return ARRAY


#: Primitives that run the jaxprs in their parameters once, and those that run them in their way.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")
_BODIES = ("scan", "while", "cond", "remat", "remat2", "checkpoint")


def _inner(equation):
    """The jaxprs that an equation runs, by the name of its parameter."""
    name = equation.primitive.name
    if name not in (*_CALLS, *_BODIES):
        return {}
    inner = {}
    for key, value in equation.params.items():
        several = value if isinstance(value, tuple) else (value,)
        if several and all(hasattr(one, "eqns") for one in several):
            inner[key] = several
    return inner


def _equations(jaxpr):
    """All equations, in the order of the program."""
    for equation in jaxpr.eqns:
        inner = _inner(equation)
        for several in inner.values():
            for one in several:
                yield from _equations(getattr(one, "jaxpr", one))
        if not inner:
            yield equation


def _place(equation):
    """The primitive of an equation, and the first array that it makes."""
    return equation.primitive.name, equation.outvars[0].aval.str_short(short_dtypes=True)


def _mapped_on(mesh, other):
    """The mesh of a shard_map, of the devices of the file's mesh, if it has as many."""
    if not isinstance(other, Mesh) or other.size != mesh.size:
        return other
    devices = mesh.devices.reshape(other.devices.shape)
    return Mesh(devices, other.axis_names, axis_types=other.axis_types)


def _run(mesh, jaxpr, constants, arguments, bound):
    """The results of a jaxpr, whose equations without jaxprs are bound so."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments)))

    def value(atom):
        return atom.val if hasattr(atom, "val") else known[atom]

    def again(one):
        """A jaxpr that an equation keeps, traced anew."""
        body, held = getattr(one, "jaxpr", one), getattr(one, "consts", ())
        shapes = [
            jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
            for v in body.invars
        ]
        closed = jax.make_jaxpr(lambda *given: _run(mesh, body, held, given, bound))(*shapes)
        return closed if hasattr(one, "consts") else closed.jaxpr

    for equation in jaxpr.eqns:
        read, inner = [value(atom) for atom in equation.invars], _inner(equation)
        if inner and equation.primitive.name in _CALLS:
            [one] = next(iter(inner.values()))
            made = _run(mesh, getattr(one, "jaxpr", one), getattr(one, "consts", ()), read, bound)
        else:
            params = dict(equation.params)
            if equation.primitive.name == "shard_map":
                params["mesh"] = _mapped_on(mesh, params["mesh"])
            for key, several in inner.items():
                traced = tuple(again(one) for one in several)
                params[key] = traced if isinstance(equation.params[key], tuple) else traced[0]
            said = equation.primitive.get_bind_params(params)
            functions, params = said if isinstance(said, tuple) else ((), said)

            def bind(arrays):
                made = equation.primitive.bind(*functions, *arrays, **params)
                return list(made) if equation.primitive.multiple_results else [made]

            made = bind(read) if inner else bound(equation, read, bind)
        known.update(zip(equation.outvars, made))
    return [value(atom) for atom in jaxpr.outvars]
'''


#: What becomes of the program's own constraints: a word for it, and the array.
_OWN = {
    True: ("kept", "jax.lax.with_sharding_constraint(array, NamedSharding(mesh, sharding.spec))"),
    False: ("dropped", "array"),
}


def code(*, keeps: bool) -> str:
    """The functions, which keep the program's own constraints or drop them."""
    word, array = _OWN[keeps]
    return _CODE.replace("OWN", word).replace("ARRAY", array)


def places(graph: OpGraph) -> dict[int, tuple[str, str, int, int]]:
    """The places of the ops of a graph that are equations of the traced program. O(V)."""
    names, every = set(graph.names), dict[int, tuple[str, str, int]]()
    count: Counter[tuple[str, str]] = Counter()
    # Views of an op's arguments have the op's name, too. A loop takes its slices itself.
    passed_over = graph.placeholder | graph.view
    passed_over |= np.array([kind.endswith(_SLICES) for kind in graph.kinds]) & (graph.runs > 1)
    # What is mapped over a mesh by hand lies as the program says.
    passed_over |= np.array([keyword(graph, op, MAPPED) is not None for op in range(graph.n_ops)])
    for op, (kind, name) in enumerate(zip(graph.kinds, graph.names, strict=True)):
        if passed_over[op] or kind == "fill" or kind.startswith("loop."):
            continue
        base = re.sub(r"_\d+$", "", name)
        primitive = (base if base in names else name).rpartition("/")[2]
        if primitive in _SUMS:
            continue
        place = primitive, graph.outputs[op].partition(";")[0]
        every[op] = (*place, count[place])
        count[place] += 1
    return {op: (*place, count[place[:2]]) for op, place in every.items()}
