"""SimpleFSDP: a plan that gathers single parameters where they are read, as a Python file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from loadmaster.base.files import write_bytes
from loadmaster.base.quoting import Code, python_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.backward import backward_of, kept
from loadmaster.systems.shared.figures import figures
from loadmaster.systems.shared.processes import command, optimizer_of
from loadmaster.systems.shared.refusal import refusal
from loadmaster.systems.shared.sharded_plans import mesh_of
from loadmaster.systems.shared.training_file import USAGE, ProcessShares, parts
from loadmaster.systems.shared.uniform_meshes import REPLICAS
from loadmaster.systems.shared.wrapped_modules import wrapped_modules
from loadmaster.systems.simplefsdp.semantics import NAME

_HEAD = '''"""Sharded data parallelism by DTensors, gathered when they are read: by Loadmaster.

'''

_REST = '''
The loss is a mean over the samples of a process; gradients are the mean over all processes. This
is SimpleFSDP: with --compile the compiler sees all collectives, and may begin them earlier.
"""

{figures}

{imports}

{constants}
#: Sizes of the mesh by name: parameters are sharded on "shard", and alike on "replicate".
MESH = {mesh}
{recomputed}
#: Parameters that the pass under way has gathered: it gathers each once.
GATHERED = {{}}

{start}

def whole(parameter):
    """A parameter as the model reads it."""
    if torch.compiler.is_compiling():  # The compiler sees what is gathered twice.
        return gathered(parameter)
    key = id(parameter), torch.is_grad_enabled()
    if key not in GATHERED:
        GATHERED[key] = gathered(parameter)
    return GATHERED[key]


{gathered}

def read_whole(module):
    """Parameters of a module are read by whole(); the module has their parts."""
    of = {{
        name: property(lambda self, name=name: whole(self._parameters[name]))
        for name, parameter in module._parameters.items()
        if parameter is not None
    }}
    if isinstance(module, torch.nn.RNNBase):  # It has a list of its parameters beside.
        of["_flat_weights"] = property(
            lambda self: [getattr(self, name) for name in self._flat_weights_names],
            lambda self, weights: None,
        )
    if of:
        module.__class__ = type(type(module).__name__, (type(module),), of)


def forget(module, *_):
    """Frees what is gathered of a module."""
    if not torch.compiler.is_compiling():
        for parameter in module.parameters():
            for with_gradient in (True, False):
                GATHERED.pop((id(parameter), with_gradient), None)


def parallelize(model, device):
    """The model as each process runs it: parameters are DTensors, sharded by their first axis."""
    model = model.to(device)
{kept}{wrap}    sizes, names = tuple(MESH.values()), tuple(MESH)
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
    part_of = {{}}  # Tied parameters have one part.
    for module in list(model.modules()):
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter not in part_of:
                cut = Shard(0) if parameter.dim() else Replicate()  # A number is on every process.
                on = [Replicate()] * (mesh.ndim - 1) + [cut]
                part = distribute_tensor(parameter.detach(), mesh, on)
                part_of[parameter] = torch.nn.Parameter(part, parameter.requires_grad)
            if parameter is not None:
                module._parameters[name] = part_of[parameter]
        read_whole(module)
    model.register_forward_pre_hook(forget)
    torch._inductor.config.reorder_for_compute_comm_overlap = True  # Where it is compiled.
{forgets}    torch.manual_seed(torch.initial_seed() + place())  # Each has a dropout of its own.
    return model


{backward}

{clip}

{optimizer_of}

{data}

{checkpoints}

{main}'''

_ON_ONE_AXIS = '''\
def gathered(parameter):
    """The whole parameter; its gradient is the mean over processes, of which each has a part."""
    on = [Replicate()]
    return parameter.redistribute(placements=on).to_local(grad_placements=[Partial("avg")])
'''

_ON_TWO_AXES = '''\
def gathered(parameter):
    """The whole parameter; its gradient is the mean over processes, of which each has a part."""
    mesh, on = parameter.device_mesh, parameter.placements
    # Gradients are scattered before their parts are summed: else they would be summed whole.
    mine = parameter.redistribute(placements=on).to_local(grad_placements=[Partial("avg"), on[1]])
    sizes = {"shape": parameter.shape, "stride": parameter.stride()}
    part = DTensor.from_local(mine, mesh["shard"], [on[1]], run_check=False, **sizes)
    return part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])
'''

_FORGETS = """\
    for module in anew:  # It gathers again where it is recomputed.
        module.register_forward_hook(forget, always_call=True)
"""

_IMPORTS = (
    "import torch._inductor.config",
    "from torch.distributed.device_mesh import init_device_mesh",
    "from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor",
)


def simplefsdp(plan: Plan, path: str | os.PathLike[str] | None = None) -> str:
    """The plan as a Python file whose parameters are DTensors, gathered when the model reads them.

    Parameters
    ----------
    plan : Plan
        That :func:`loadmaster.place` made for the target ``"simplefsdp"``.
    path : optional
        Where to write it.

    Returns
    -------
    str
        The file: ``start()`` joins the processes that ``torchrun`` began, and ``parallelize(model,
        device)`` shards the model.

    Raises
    ------
    InputError
        The plan is of another target; the message has the command that plans for this one.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink")
    >>> plan = lm.place(graph, cluster, target="simplefsdp", replicas=2)
    >>> next(x for x in lm.writers.simplefsdp(plan).splitlines() if x.startswith("MESH"))
    "MESH = {'shard': 2}"
    """
    recipe, parallelism = plan.recipe, plan.parallelism
    if plan.target != NAME or recipe is None or parallelism is None:
        raise refusal(plan, NAME, ["it does not gather parameters one by one"])
    devices = recipe.mesh.on(plan.cluster).tolist()
    modules = wrapped_modules(plan, None, lambda path: path)
    mesh = mesh_of(parallelism)
    written = parts(plan, ProcessShares(devices, len(devices)), (*_IMPORTS, *modules.imports))
    file = python_file(
        _HEAD + USAGE + _REST,
        run=command(plan, devices),
        figures=figures(plan, _more()),
        mesh=mesh,
        kept=kept(plan),
        gathered=Code(_ON_TWO_AXES if REPLICAS in mesh else _ON_ONE_AXIS),
        forgets=Code(_FORGETS if recipe.recompute else ""),
        optimizer=optimizer_of(plan),
        recomputed=modules.parts["recomputed"],
        wrap=modules.parts["wrap"],
        **backward_of(plan, after=["forget(model)"], parts=True),
        **written,
    )
    if path is not None:
        write_bytes(path, file.encode())
    return file


def _more() -> Iterator[str]:
    """Lines on what the file does otherwise than the recipe."""
    yield (
        "Parameters are cut by their first axis, and what that does not divide is padded: parts "
        "are equal in the plan."
    )
