"""JAX: a plan as a Python file of a mesh, ``PartitionSpec`` per array, and constraints.

The file needs JAX alone. Arrays have the names that the graph has for them: of a program of JAX the
argument and the path in its tree, of PyTorch those of its parameters and buffers.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, comment, lines, python, python_file, python_words
from loadmaster.dimensions.calls import is_mapped
from loadmaster.model.families import families
from loadmaster.model.graph import BUFFER, INPUT, PARAMETER
from loadmaster.model.module_paths import alike
from loadmaster.plans.plan import Plan
from loadmaster.systems.jax.axis_names import named_axes
from loadmaster.systems.jax.constraints import constrained, operands
from loadmaster.systems.jax.semantics import NAME
from loadmaster.systems.jax.traced import code, places
from loadmaster.systems.shared.array_specs import ArraySpecs
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.own_constraints import OwnConstraints, constraints_of
from loadmaster.systems.shared.partition_specs import axis_of
from loadmaster.systems.shared.refusal import Reason, refusal
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.specs import specs_of

_FILE = '''"""{title:words}: shardings for jax.jit, written by Loadmaster.

{usage}
"""

{figures}

import re

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

#: Axes of the mesh, the outermost first.
AXES = {axes}

#: Which of jax.devices() is at each place of the mesh, row by row:
{devices}
DEVICES = {numbers}

#: How arrays lie, by their names, in which * is any number.{layout}
SPECS = {{
{specs}
}}

{constraints}
def mesh(devices=None):
    """The mesh, of jax.devices() or of others in their place."""
    devices = np.array(jax.devices() if devices is None else devices)
    if len(devices) <= max(DEVICES):
        raise ValueError(
            f"the mesh needs {{max(DEVICES) + 1}} devices, and there are {{len(devices)}}: "
            "run it where there are more, or plan for a cluster of as many"
        )
    return Mesh(devices[DEVICES].reshape(tuple(AXES.values())), tuple(AXES))


def shardings(mesh, tree, name=""):
    """The shardings of a tree of arrays, as in_shardings, out_shardings and jax.device_put take it.

    The name is that of the argument. What the plan does not name is whole on every device.
    """
    named = []

    def of(path, leaf):
        inside = jax.tree_util.keystr(path, simple=True, separator=".")
        key = ".".join(filter(None, (name, inside)))
        key = key if key in SPECS else re.sub(r"(?<![^.])\\d+(?![^.])", "*", key)
        named.append(key in SPECS)
        return NamedSharding(mesh, SPECS.get(key, P()))

    found = jax.tree_util.tree_map_with_path(of, tree)
    if not any(named):
        raise KeyError(f"the plan has no array of the name {{name!r}}, or below it")
    return found
{constrain}'''

_CONSTRAINTS = """\
#: What jax.lax.with_sharding_constraint is to say of what ops make, where it does not follow from
#: the arrays that they read: by the names that the plan has for the ops, or for their modules.
CONSTRAINTS = {{
{rows}
}}

"""

_PLACES = """\
#: These ops in the traced program: the primitive, the array, and the number of such an equation of
#: how many.
PLACES = {{
{places}
}}

#: What products are to read, by the numbers of their operands, where it lies in another way before.
OPERANDS = {{
{operands}
}}

"""

_CONSTRAIN = '''

def constrain(mesh, array, name):
    """The array that the op of a name makes, lying as CONSTRAINTS say."""
    key = name if name in CONSTRAINTS else re.sub(r"(?<![^.])\\d+(?![^.])", "*", name)
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, CONSTRAINTS[key]))
'''

#: Comment on parameters whose axes are not in JAX's usual order.
_TORCH = """
#: Axes are in PyTorch's order: an nn.Linear's weight is [out, in], a convolution's [out, in, ...].
#: A kernel that is the transpose of such a weight has its spec in reverse."""


def jax(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as a Python file: a mesh, the spec of every parameter and input, constraints.

    Parameters
    ----------
    plan : Plan
        That :func:`loadmaster.place` made for the target ``"jax"``, or whose labels specs can say.
    path : optional
        Where to write it.

    Returns
    -------
    str
        The file: ``mesh()`` makes the mesh, ``shardings(mesh, tree, name)`` what ``jax.jit`` takes
        as ``in_shardings`` and ``out_shardings``, ``constrain(mesh, array, name)`` a constraint. Of
        a program of JAX, ``constrained(mesh, function)`` puts all of them into the function.

    Raises
    ------
    InputError
        All that is in the way, and what plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    >>> file = lm.writers.jax(lm.place(graph, cluster, target="jax", tp=1))
    >>> [line for line in file.splitlines() if line.startswith("AXES")]
    ["AXES = {'dp': 4}"]
    """
    layout = plan.layout
    if layout is None or plan.recipe is None or plan.recipe.micro is not None:
        raise refusal(plan, NAME, ["it shares no work by labels of one mesh"])
    said = _JaxFile(plan, layout)
    if reasons := list(said.reasons()):
        raise refusal(plan, NAME, reasons)
    text = said.text()
    if path is not None:
        write_bytes(path, text.encode())
    return text


class _JaxFile(ArraySpecs):
    """The contents of the file, read off a plan's labels."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        said = plan.options.get("axis_names")
        names = {} if said is None else named_axes(said)
        self.keeps = plan.options.get("model_constraints") == "keep"
        if self.keeps:
            names = OwnConstraints.of(plan.graph, names or None).axes(layout.mesh) or names
        super().__init__(plan, layout, names)

    def reasons(self) -> Iterator[Reason]:
        """Everything that the file cannot say."""
        recipe = self.plan.recipe
        if recipe is not None and recipe.recompute:
            yield "modules are recomputed, which code says by jax.checkpoint", [*recipe.recompute]
        yield from self.in_the_way()

    def _rows(self, nodes: Mapping[int, str]) -> list[Code]:
        """A line per array, or per arrays whose names differ in numbers alone, if specs are one."""
        named: dict[str, tuple[str, str]] = {}
        alike_ones: dict[str, list[tuple[str, str]]] = {}
        for node, name in nodes.items():
            output = self.graph.outputs[self.structure.op[node]].partition(";")[0]
            named[name] = _written(self.spec(node) or []), output
            alike_ones.setdefault(alike(name), []).append(named[name])
        rows: dict[str, str] = {}
        for name, (spec, output) in named.items():
            others = alike_ones[alike(name)]
            key = alike(name) if {spec} == {other for other, _ in others} else name
            is_one = key == name or {output} == {other for _, other in others}
            rows[key] = f"{spec},{comment(output, '  # ')}" if is_one else f"{spec},"
        return [Code(f"    {python(key)}: {row}") for key, row in rows.items()]

    # -- the text ---------------------------------------------------------------------------------

    def text(self) -> str:
        """The file."""
        structure, specs = self.structure, list[Code]()
        op = structure.op
        for kind, words in (
            (PARAMETER, "Parameters."),
            (BUFFER, "State beside them."),
            (INPUT, "Inputs."),
        ):
            nodes = np.flatnonzero(structure.stands_for == kind).tolist()
            rows = self._rows({n: self.graph.names[structure.op[n]] for n in nodes})
            specs += [comment(words, "    # "), *rows] if rows else []
        on = self.mesh.on(self.plan.cluster).tolist()
        of = families(self.plan.cluster)
        names = [self.plan.cluster.devices[d].name for d in on]
        named = self._constrained()
        rows = self._rows(named)
        operands = self._operands()
        # What the program says of devices itself is kept or dropped, and goes by their order here.
        says_itself = constraints_of(self.graph) or is_mapped(self.graph)
        is_constrained = bool(rows or operands or says_itself)
        several = ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]}"
        return python_file(
            _FILE,
            title=self.graph.name,
            usage=lines(map(python_words, self._usage(is_constrained=is_constrained))),
            figures=figures(self.plan, self._unsaid()),
            axes={self.axis_name(axis): axis.size for axis in self.mesh.axes},
            devices=comment(f"{several}.", "#: "),
            numbers=[of[d][1] for d in on],
            layout=Code("" if self._is_jax else _TORCH),
            specs=lines(specs),
            constraints=python_file(
                _CONSTRAINTS + (_PLACES if self._is_jax else "") if is_constrained else "",
                rows=lines(rows),
                places=lines(
                    Code(f"    {python(self._places[op[node]])}: {python(name)},")
                    for node, name in named.items()
                ),
                operands=lines(operands),
            ),
            constrain=Code(
                (_CONSTRAIN + (code(keeps=self.keeps) if self._is_jax else ""))
                if is_constrained
                else ""
            ),
        )

    def _constrained(self) -> dict[int, str]:
        """The nodes that are to be constrained, but for arithmetic of whole numbers, and what they
        are called: of PyTorch the module, where it has no other such node.
        """
        graph, op = self.graph, self.structure.op
        nodes = [
            node
            for node in constrained(self.structure, self.labels, backward=self._is_jax)
            if graph.outputs[op[node]].startswith(("f", "bf", "c"))
            and (not self._is_jax or op[node] in self._places)
        ]
        modules = Counter("" if self._is_jax else graph.modules[op[node]] for node in nodes)
        return {
            node: module
            if not self._is_jax and (module := graph.modules[op[node]]) and modules[module] == 1
            else graph.names[op[node]]
            for node in nodes
        }

    def _operands(self) -> list[Code]:
        """A line per op of a program of JAX whose operands are to be moved before it."""
        rows: dict[int, dict[int, Code]] = {}
        for node, position in operands(self.structure, self.labels) if self._is_jax else ():
            if (op := self.structure.op[node]) in self._places:
                spec = _written(self._operand(node, position))
                rows.setdefault(op, {})[position] = spec
        lines_of = []
        for op, of in rows.items():
            specs = ", ".join(f"{position}: {spec}" for position, spec in of.items())
            lines_of.append(Code(f"    {python(self._places[op])}: {{{specs}}},"))
        return lines_of

    def _operand(self, node: int, position: int) -> list[list[str]]:
        """Axes of the mesh by which each axis of what an op reads is cut."""
        form = self.forms[self.form_of[node]]
        factors = form.inputs[position]
        axes: list[list[str]] = [[] for _ in range(1 + max((at for at, _ in factors), default=-1))]
        for axis, labels in zip(self.mesh.axes, self.labels, strict=True):
            spec = specs_of(form, int(labels[self.structure.op[node]]))[0][position]
            if spec >= 0:
                at = axis_of(factors, spec)
                assert at is not None, "is_said"
                axes[at].append(self.axis_name(axis))
        return axes

    @cached_property
    def _places(self) -> Mapping[int, tuple[str, str, int, int]]:
        return places(self.graph)

    def _unsaid(self) -> Iterator[str]:
        """Choices that the file leaves to XLA."""
        yield "XLA joins ops and chooses collectives; the plan has the ops of the graph."

    @property
    def _is_jax(self) -> bool:
        framework = str(self.graph.meta.get("framework", ""))
        return framework in ("jax", "stablehlo", "hlo")

    def _usage(self, *, is_constrained: bool) -> list[str]:
        arguments = self._arguments()
        words = ["    on = mesh()"]
        if not self._is_jax:
            inputs = ", ".join(f"{name!r}: {name}" for name in arguments[INPUT])
            words += [
                "    parameters = jax.device_put(parameters, shardings(on, parameters))",
                f"    inputs = jax.device_put(inputs, shardings(on, inputs))  # {{{inputs}}}",
                "    loss, gradients = jax.jit(jax.value_and_grad(loss_of))(parameters, inputs)"
                if "b" in self.graph.phases
                else "    outputs = jax.jit(model)(parameters, inputs)",
                "",
                "Parameters are a dict by PyTorch's names, in its shapes.",
            ]
            return words
        names = self._in_order()
        state = [i for i, name in enumerate(names) if name not in arguments[INPUT]]
        words += [f"    {name}_on = shardings(on, {name}, {name!r})" for name in names]
        function = "constrained(on, step)" if is_constrained else "step"
        words += ["    step = jax.jit(", f"        {function},"]
        given_on = [f"{name}_on" for name in names]
        words.append(f"        in_shardings={_tuple(given_on)},")
        back = _tuple([*(given_on[i] for i in state), "None"])
        if len(arguments[BUFFER]) or self._is_donated:
            words.append(f"        out_shardings={back},  # as the step returns them")
        if self._is_donated:
            words.append(f"        donate_argnums={tuple(state)},")
        words += ["    )"]
        if not self._is_donated and len(arguments[BUFFER]):
            words += ["", "The step was read without donated arguments: it has its state twice."]
        return words

    def _arguments(self) -> Mapping[int, list[str]]:
        """The first words of the names of placeholders, by what these are."""
        words: dict[int, dict[str, None]] = {PARAMETER: {}, BUFFER: {}, INPUT: {}}
        for node, kind in enumerate(self.structure.stands_for.tolist()):
            name = self.graph.names[self.structure.op[node]]
            if kind in words:
                words[kind][name.partition(".")[0] if self._is_jax else name] = None
        return {kind: list(names) for kind, names in words.items()}

    def _in_order(self) -> list[str]:
        """The arguments of the program."""
        stands_for = self.structure.stands_for
        nodes = np.flatnonzero(np.isin(stands_for, (PARAMETER, BUFFER, INPUT))).tolist()
        names = (self.graph.names[self.structure.op[node]] for node in nodes)
        return list(dict.fromkeys(re.split(r"\.", name)[0] for name in names))

    @property
    def _is_donated(self) -> bool:
        """True if the step updates its state in place."""
        in_place = (self.graph.alias_of >= 0) & ~self.graph.view
        return bool(in_place.any())


def _tuple(words: Sequence[str]) -> str:
    """A tuple of names in Python."""
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def _written(spec: Sequence[Sequence[str]]) -> Code:
    """A spec in Python.

    >>> _written([["dp"], [], ["dp", "tp"]]), _written([[], []])
    ("P('dp', None, ('dp', 'tp'))", 'P()')
    """
    if not any(spec):
        return Code("P()")
    axes = [tuple(a) if len(a) > 1 else a[0] if a else None for a in spec]
    return Code(f"P({', '.join(map(python, axes))})")
