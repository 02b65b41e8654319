"""The functions ``backward``, ``clip`` and ``optimizer_of`` of files that run all of a model."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.base.quoting import Code, lines, python_file
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.precision import computed_in, dtype_of
from loadmaster.systems.shared.training_file import kept_in

_BACKWARD = '''\
def backward(model, batch, loss_of):
    """The loss of this process's samples; gradients are then of the mean over the whole batch."""
    args, kwargs, targets = batch
{step}
    return loss.detach()
'''

_UNSCALED = '''

#: Losses are multiplied by this, so that small gradients are no zeros in float16.
SCALE = [2.0**16]


def unscaled(model):
    """Divides gradients by the scale. Where one is infinite there are none, and no update."""
    of = [p for p in model.parameters() if p.grad is not None]
    finite = torch.stack([{local}.isfinite().all() for p in of]).all().int()
    dist.all_reduce(finite, dist.ReduceOp.MIN)
    for p in of:
        p.grad = p.grad.div_(SCALE[0]) if finite else None
    SCALE[0] *= 2 ** (1 / 2000) if finite else 0.5
'''

#: The elements of a gradient that a process has, of a parameter that may be a DTensor.
_LOCAL = "(p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad)"

_CLIP = '''\
def clip(model, max_norm):
    """Scales all gradients to a norm of at most max_norm together; the norm that they had."""
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
'''

_OPTIMIZER = '''\
def optimizer_of(model, optimizer, **options):
    """An optimizer of all parameters that are trained."""
    return optimizer([p for p in model.parameters() if p.requires_grad], **options)
'''

_CLIP_PARTS = '''\
def trained(model):
    """The parameters that are trained, those apart whose parts are on different meshes."""
    on = {}
    for p in model.parameters():
        if p.requires_grad:
            on.setdefault(p.device_mesh if isinstance(p, DTensor) else None, []).append(p)
    return list(on.values())


def clip(model, max_norm):
    """Scales all gradients to a norm of at most max_norm together; the norm that they had."""
    groups = trained(model)
    norms = [torch.nn.utils.clip_grad_norm_(group, float("inf")) for group in groups]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    norm = torch.linalg.vector_norm(torch.stack(whole))
    by = min(1.0, max_norm / (norm.item() + 1e-6))
    for group in groups:
        torch._foreach_mul_([p.grad for p in group if p.grad is not None], by)
    return norm
'''

_OPTIMIZER_PARTS = '''\
def optimizer_of(model, optimizer, **options):
    """An optimizer of all parameters that are trained."""
    return optimizer([{"params": group} for group in trained(model)], **options)
'''


def backward_of(
    plan: Plan, within: Sequence[str] = (), after: Sequence[str] = (), *, parts: bool
) -> dict[str, Code]:
    """The parts ``{backward}``, ``{clip}`` and ``{optimizer_of}`` of a file.

    Parameters
    ----------
    plan : Plan
    within : sequence of str
        Contexts of the step, in Python.
    after : sequence of str
        Lines behind the backward pass, in Python.
    parts : bool
        Whether parameters are DTensors, or some are.
    """
    forward = ["loss = loss_of(model(*args, **kwargs), *targets)"]
    behind = ["loss.backward()", *after]
    text = ""
    precision = computed_in(plan.graph)
    if precision in ("f16", "bf16") and dtype_of(plan.graph) == "f32":
        kind = "next(model.parameters()).device.type"
        forward = [f"with torch.autocast({kind}, PRECISION):", f"    {forward[0]}"]
        if precision == "f16":
            text = python_file(_UNSCALED, local=Code(_LOCAL if parts else "p.grad"))
            behind[0] = "(loss * SCALE[0]).backward()"
            behind.append("unscaled(model)")
    step = [*forward, *behind]
    if within:
        step = [f"with {', '.join(within)}:", *(f"    {line}" for line in step)]
    code = python_file(_BACKWARD, step=lines(Code(f"    {line}") for line in step))
    return {
        "backward": Code(f"{code}{text}"),
        "clip": Code(_CLIP_PARTS if parts else _CLIP),
        "optimizer_of": Code(_OPTIMIZER_PARTS if parts else _OPTIMIZER),
    }


def kept(plan: Plan) -> Code:
    """Lines of ``parallelize`` that give parameters the dtype that the plan keeps them in."""
    return Code(
        "    for parameter in model.parameters():\n"
        "        parameter.data = parameter.data.to(PARAMETERS)\n"
        if kept_in(plan)
        else ""
    )
