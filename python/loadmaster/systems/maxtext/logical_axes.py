"""Logical axis rules: the axes of a mesh that cut each logical axis of a decoder's arrays.

An array is declared with a name for each of its axes, such as ``("embed", "mlp")``. Rules say for
each name by which axes of the mesh it is cut; of one array an axis of the mesh cuts one axis, the
first in the order of the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loadmaster.model.parallelism import Parallelism
from loadmaster.plans.plan import Plan
from loadmaster.systems.shared.parallelism_of_plan import parallelism_by_axes
from loadmaster.systems.shared.refusal import Reason, refusal

#: Names of a rule, and the axes of a mesh, in the order of these.
Rule = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class LogicalAxes:
    """The axes of a mesh, by the part that they have in a plan.

    Attributes
    ----------
    sizes : mapping of str to int
        Of each axis of the mesh that has several devices, outermost first.
    batch, state, tensor, tokens : tuple of str
        The axes that cut the batch; parameters and what goes with them; heads, features and
        vocabulary; tokens between the products.
    """

    sizes: Mapping[str, int]
    batch: tuple[str, ...]
    state: tuple[str, ...]
    tensor: tuple[str, ...]
    tokens: tuple[str, ...]

    @classmethod
    def of(cls, parallelism: Parallelism, tensor: str) -> LogicalAxes:
        """The axes of a parallelism, of which one that cuts tensors has a name."""
        named = {"data": parallelism.replicate, "fsdp": parallelism.shard, tensor: parallelism.tp}
        sizes = {name: size for name, size in named.items() if size > 1}
        batch = tuple(name for name in ("data", "fsdp") if name in sizes)
        cut = tuple(name for name in (tensor,) if name in sizes)
        state = tuple(name for name in ("fsdp",) if name in sizes)
        return cls(sizes, batch, state, cut, cut if parallelism.sequence else ())

    def rules(self, names: Mapping[str, Iterable[str]]) -> list[Rule]:
        """A rule for each name, by the attribute that has its axes; of "whole" none."""
        return [
            (name, () if attribute == "whole" else getattr(self, attribute))
            for attribute, listed in names.items()
            for name in listed
        ]


def parallelism_of_axes(plan: Plan, name: str) -> Parallelism:
    """The parallelism of a plan that rules can say, for the writer of the system of a name.

    Raises
    ------
    InputError
        All that is in the way, and what plans for it.
    """
    is_own = plan.target in ("flax", "maxtext") and plan.parallelism is not None
    parallelism = plan.parallelism if is_own else parallelism_by_axes(plan)
    reasons: list[Reason] = []
    if plan.recipe is None:
        devices = sorted(set(plan.running_devices[plan.problem.reduced.op_of].tolist()))
        if len(devices) > 1 and not is_own:
            names = [plan.cluster.devices[d].name for d in devices]
            reasons.append(("no recipe says what its devices do", names))
    if parallelism is None:
        reasons.append("no degrees say what lies how on its mesh")
    elif not is_own and parallelism.tp > 1:
        reasons.append("its own planning says which heads and features tensor parallelism cuts")
    elif parallelism.stages > 1 or parallelism.micro_batches > 1:
        reasons.append("it has stages or micro-batches")
    elif parallelism.shard_state in ("optimizer", "gradients"):
        reasons.append("a part of the state is whole, and a part is not")
    if parallelism is None or reasons:
        raise refusal(plan, name, reasons)
    return parallelism
