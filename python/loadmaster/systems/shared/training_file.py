"""Parts of Python files that train a model of PyTorch: all of them have one face.

A file needs PyTorch alone. It is a module for the user's own script, and a script that trains on
the example input of the model. A writer has a template with ``parallelize(model, device)``,
``backward(model, batch, loss_of)``, ``clip(model, max_norm)`` and ``optimizer_of(model, optimizer,
**options)``; :mod:`.backward` has the last three for processes that run all of the model. It puts
in what is here, from :func:`parts`:

``{imports}``
    The imports of all parts, and those of the writer.
``{constants}``
    ``BATCH`` and ``BATCH_OF_EACH`` (samples of a step), ``MICRO_BATCHES``,
    ``PRECISION`` (the dtype of products), ``PARAMETERS`` (the dtype of parameters; None: as the
    model has them), ``MODEL`` (``FILE.py:FUNCTION``; None: the graph is of no such function),
    ``PLANNED_STEP`` (s), ``PLANNED_PEAK`` (bytes).
``{start}``
    ``PROCESSES``, and ``start(backend, seed, **options)``, which joins the processes, and gives
    the device of this one.
``{checkpoints}``
    ``save(model, optimizer, folder)`` and ``load(model, optimizer, folder)``.
``{data}``
    ``place()``, the number of this process's share of the batch; ``share_of(batch, device)``, its
    samples; ``sampler_of(dataset)``.
``{main}``
    ``example_of(spec)``, ``over_processes(loss)`` and ``main()``.

In a file a batch is ``(args, kwargs, targets)``. The loss of a batch is ``loss_of(model(*args,
**kwargs), *targets)``, a mean over samples. ``backward`` gives the loss of the samples of this
process, and leaves gradients of the mean over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.base.quoting import Code, lines, python_file
from loadmaster.base.user_file import is_spec
from loadmaster.model.graph import PARAMETER
from loadmaster.model.shapes import parse_output
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.precision import computed_in
from loadmaster.systems.shared.processes import start
from loadmaster.transforms.shares import batch_size

#: PyTorch's names of floating-point types.
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}

#: How a file is used, in its docstring; in a template, with the parts ``run`` and ``optimizer``.
USAGE = """{run:words}

trains on the example input of the model. In a script of one's own:

    device = start()
    model = parallelize(Model(), device)
    optimizer = optimizer_of(model, torch.optim.{optimizer}, lr=1e-3)
    for x, y in DataLoader(dataset, BATCH_OF_EACH, sampler=sampler_of(dataset)):
        loss = backward(model, ((x,), {{}}, (y,)), torch.nn.functional.cross_entropy)
        clip(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""

_STANDARD = (
    "import argparse",
    "import importlib.util",
    "import os",
    "import sys",
    "import time",
    "from collections.abc import Mapping",
)

_TORCH = (
    "import torch",
    "import torch.distributed as dist",
    "import torch.distributed.checkpoint as dcp",
    "from torch.distributed.checkpoint.state_dict import (\n"
    "    StateDictOptions,\n"
    "    get_state_dict,\n"
    "    set_state_dict,\n"
    ")",
    "from torch.utils._pytree import tree_leaves, tree_map_only",
    "from torch.utils.data import DistributedSampler",
)

_CONSTANTS = """\
#: Samples of a step: of all processes, and of each; and the parts that each takes them in.
BATCH, BATCH_OF_EACH, MICRO_BATCHES = {batch}, {each}, {micro}

#: The types in which products are computed and parameters are kept; None: as the model has them.
PRECISION, PARAMETERS = {precision}, {parameters}

#: The function that builds the model and its example input: FILE.py:FUNCTION.
MODEL = {model}

#: The plan's seconds of a step, and bytes on the device that needs most.
PLANNED_STEP, PLANNED_PEAK = {step}, {peak}
"""

_CHECKPOINTS = '''\
def save(model, optimizer, folder):
    """Writes weights and the optimizer's state, each process its part of them."""
    dcp.save(_state(model, optimizer), checkpoint_id=folder)


def load(model, optimizer, folder):
    """Reads what save() wrote, on any number of processes."""
    state = _state(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        model,
        {state_of},
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(flatten_optimizer_state_dict=True),
    )


def _state(model, optimizer):
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    parts = get_state_dict(model, {state_of}, options=options)
    return dict(zip(("model", "optimizer"), parts))
'''

_DATA = '''\
def place():
    """The number of this process's share of the batch."""
    return dist.get_rank() // (PROCESSES // (BATCH // BATCH_OF_EACH))


def share_of(batch, device):
    """The samples of this process, on its device, of a batch of all processes."""

    def part(tensor):
        is_batch = tensor.dim() and len(tensor) == BATCH
        return (tensor.split(BATCH_OF_EACH)[place()] if is_batch else tensor).to(device)

    return tree_map_only(torch.Tensor, part, batch)


def sampler_of(dataset, **options):
    """Gives each share of the batch samples of its own, as many as the others have."""
    shares = BATCH // BATCH_OF_EACH
    return DistributedSampler(dataset, shares, place(), drop_last=True, **options)
'''

_MAIN = '''\
def example_of(spec):
    """The model, example batch, loss and optimizer of FILE.py:FUNCTION."""
    path, _, name = spec.rpartition(":")
    if not os.path.exists(path):  # On another machine it may lie beside this file.
        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.path.basename(path))
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module_spec = importlib.util.spec_from_file_location("loadmaster_model", path)
    module = sys.modules["loadmaster_model"] = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    case = getattr(module, name)()
    inputs, targets = case["example_inputs"], case.get("targets", ())
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (_listed(inputs), {{}})
    batch = (args, dict(kwargs), _listed(targets))
    optimizer = case.get("optimizer") or getattr(torch.optim, {optimizer}, torch.optim.SGD)
    if isinstance(optimizer, torch.optim.Optimizer):  # It is made again, of what is trained here.
        return case["model"], batch, case.get("loss"), type(optimizer), optimizer.defaults
    return case["model"], batch, case.get("loss"), optimizer, {{}}


def _listed(values):
    return tuple(values) if isinstance(values, (tuple, list)) else (values,)


def own_loss(output, *_):
    """The loss that a model puts out; else the mean of all that it puts out."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is not None:
        return loss
    of = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    return sum(x.float().mean() for x in of)


def over_processes(loss):
    """The loss of the whole batch, of those of processes."""
    loss = loss.detach().float().clone()
    dist.all_reduce(loss)
    return loss.item() / PROCESSES


def main():
    """Trains on the model's example input, each process on its share, and prints steps."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", default=MODEL, required=MODEL is None, help="FILE.py:FUNCTION")
    parser.add_argument("--steps", type=int, default=5)
{compile_option}    chosen = parser.parse_args()
    device = start()
    model, batch, loss_of, optimizer, options = example_of(chosen.model)
    batch, loss_of = share_of(batch, device), loss_of or own_loss
    model = {parallelize}
{compiled}    optimizer = optimizer_of(model, optimizer, **options)
    for step in range(chosen.steps):
        dist.barrier()
        begin = time.perf_counter()
        loss = backward(model, batch, loss_of)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        loss = over_processes(loss)
        if dist.get_rank() == 0:
            took = f"{{seconds * 1e3:.4g}} ms (planned: {{PLANNED_STEP * 1e3:.4g}} ms)"
            print(f"step {{step}}: loss {{loss:.6g}}, {{took}}")
    if dist.get_rank() == 0:
        planned = f"planned: {{PLANNED_PEAK / 1e9:.3g}} GB"
        if device.type == "cuda":
            print(f"peak: {{torch.cuda.max_memory_allocated() / 1e9:.3g}} GB ({{planned}})")
        else:
            import resource

            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(f"peak: {{peak:.3g}} GB with Python and PyTorch ({{planned}} without)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''


_COMPILE_OPTION = """\
    parser.add_argument("--compile", action="store_true", help="compile the model")
"""

_COMPILED = """\
    if chosen.compile:
        model.compile()
"""


@dataclass(frozen=True)
class ProcessShares:
    """Shares of the batch, and the processes that have them.

    Attributes
    ----------
    devices : sequence of int
        The device of each process, by index.
    shares : int
        Shares that the batch is divided into. Processes of one share follow one another.
    micro_batches : int
        Parts of a share, one after another.
    """

    devices: Sequence[int]
    shares: int
    micro_batches: int = 1


def parts(
    plan: Plan,
    sizes: ProcessShares,
    imports: Iterable[str] = (),
    parallelize: str = "parallelize(model.train(), device)",
    state_of: str = "optimizer",
    *,
    is_called: bool = True,
) -> dict[str, Code]:
    """The parts of a file that all files have, by their names in its template.

    Parameters
    ----------
    plan : Plan
    sizes : ProcessShares
    imports : iterable of str
        Imports of the writer's own parts.
    parallelize : str
        The call by which ``main`` gets the model that ``backward`` is called with.
    state_of : str
        The optimizer whose state is saved, of ``optimizer``.
    is_called : bool
        Whether the model's own forward pass is called, so that the model can be compiled.
    """
    batch = batch_size(plan.graph) or sizes.shares
    return {
        "imports": _imports(imports),
        "constants": python_file(
            _CONSTANTS,
            batch=batch,
            each=batch // sizes.shares,
            micro=sizes.micro_batches,
            precision=_dtype(computed_in(plan.graph)),
            parameters=_dtype(kept_in(plan)),
            model=_file_of(plan),
            step=plan.makespan,
            peak=max(plan.memory.peak.tolist(), default=0),
        ),
        "start": start(plan, sizes.devices),
        "checkpoints": python_file(_CHECKPOINTS, state_of=Code(state_of)),
        "data": Code(_DATA),
        "main": python_file(
            _MAIN,
            optimizer=str(plan.graph.meta.get("optimizer", "SGD")),
            parallelize=Code(parallelize),
            compile_option=Code(_COMPILE_OPTION if is_called else ""),
            compiled=Code(_COMPILED if is_called else ""),
        ),
    }


def kept_in(plan: Plan) -> str | None:
    """The dtype of all parameters; None: they have several, or that of any model."""
    graph = plan.graph
    of = np.flatnonzero(graph.stands_for == PARAMETER).tolist()
    dtypes = {parse_output(graph.outputs[op])[0][0] for op in of if graph.outputs[op]} & set(DTYPES)
    return dtypes.pop() if len(dtypes) == 1 and dtypes != {"f32"} else None


def _file_of(plan: Plan) -> str | None:
    """The function that the graph was captured from; None: the graph does not say it."""
    file = plan.graph.meta.get("file")
    return file if isinstance(file, str) and is_spec(file) else None


def _dtype(name: str | None) -> Code:
    """A dtype of PyTorch in Python; None: none."""
    return Code(f"torch.{DTYPES[name]}" if name in DTYPES else "None")


def _imports(more: Iterable[str]) -> Code:
    """Imports in the order of the standard linters."""
    of_torch = sorted({*_TORCH, *more}, key=lambda line: (line.startswith("from"), line))
    return lines(map(Code, ["from __future__ import annotations", "", *_STANDARD, "", *of_torch]))
