"""Flax: a plan as a Python file with a mesh and logical axis rules."""

from __future__ import annotations

import os

import numpy as np

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, comment, lines, python, python_file
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.systems.maxtext.logical_axes import LogicalAxes, parallelism_of_axes
from loadmaster.systems.maxtext.semantics import FLAX
from loadmaster.systems.shared.figures import figures

_FILE = '''"""{title:words}: a mesh and logical axis rules for Flax, written by Loadmaster.

    on = mesh()
    with jax.set_mesh(on), nn.logical_axis_rules(RULES):  # flax.linen
        names = nn.get_partition_spec(jax.eval_shape(init, key))
        shardings = nn.logical_to_mesh_sharding(names, on, RULES)
        parameters = jax.jit(init, out_shardings=shardings)(key)

Modules name the axes of their arrays: nn.with_logical_partitioning(init, ("embed", "mlp")), and of
activations nn.with_logical_constraint(x, ("batch", "length", "embed")). nnx takes the same rules:
nnx.with_partitioning(init, ("embed", "mlp"), sharding_rules=RULES).
"""

{figures}

import jax
import numpy as np
from jax.sharding import Mesh

#: Axes of the mesh, outermost first.
AXES = {axes}

{devices}
DEVICES = {numbers}

#: Logical axes, and the axes of the mesh that cut them. An axis of the mesh cuts one axis of an
#: array: the first in this order.
RULES = (
{rules}
)


def mesh():
    """The mesh of the plan's devices."""
    devices = np.array(jax.devices())
    if len(devices) <= max(DEVICES):
        raise RuntimeError(f"for {{max(DEVICES) + 1}} devices, and there are {{len(devices)}}")
    return Mesh(devices[DEVICES].reshape(tuple(AXES.values())), tuple(AXES))
'''

#: Names of logical axes that Flax's examples and T5X have, by what cuts them.
_NAMES = {
    "batch": ("batch",),
    "tensor": ("vocab", "mlp", "heads", "kv_heads", "joined_kv"),
    "tokens": ("length",),
    "state": ("embed",),
    "whole": ("kv", "layers", "norm", "relpos_buckets", "abspos_buckets"),
}


def flax(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as a Python file: ``mesh()``, and ``RULES`` of logical axes.

    Parameters
    ----------
    plan : Plan
        As :func:`~loadmaster.systems.maxtext.write.maxtext` takes it.
    path : optional
        Where to write it.

    Returns
    -------
    str
        The file, with the plan's figures in its head.

    Raises
    ------
    InputError
        All that is in the way, and what plans for it.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> plan = lm.place(graph, cluster, target="flax", tp=2, shard=4)
    >>> [line for line in lm.writers.flax(plan).splitlines() if "embed'" in line]
    ["    ('embed', 'fsdp'),"]
    """
    axes = LogicalAxes.of(parallelism_of_axes(plan, FLAX), "tensor")
    rules = [Code(f"    {python((name, _axes(by)))},") for name, by in axes.rules(_NAMES)]
    used = np.unique(plan.running_devices[plan.problem.reduced.op_of])
    on = (plan.recipe.mesh.on(plan.cluster) if plan.recipe is not None else used).tolist()
    of = families(plan.cluster)
    names = [plan.cluster.devices[d].name for d in on]
    several = ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]}"
    said = "XLA joins ops and chooses collectives; the plan has the ops of the graph."
    text = python_file(
        _FILE,
        title=plan.graph.name,
        figures=figures(plan, [said]),
        axes=dict(axes.sizes) or {"data": 1},
        devices=comment(f"{several}.", "#: "),
        numbers=[of[d][1] for d in on],
        rules=lines(rules),
    )
    if path is not None:
        write_bytes(path, text.encode())
    return text


def _axes(by: tuple[str, ...]) -> str | tuple[str, ...] | None:
    """Axes of a mesh as a rule has them: none, the one, or several."""
    return by if len(by) > 1 else by[0] if by else None
