"""MaxText and Flax as planning for them sees them."""

from loadmaster.systems.registry import Launcher, Semantics, System, WrittenForm

NAME, FLAX = "maxtext", "flax"


def _semantics(system: str) -> Semantics:
    return Semantics(
        system=system,
        models="a training step of a decoder: one stack of layers of one width with causal "
        "attention, which reads words, and a batch",
        splits="the batch over replicas, with all state in parts or whole; heads, features and "
        "vocabulary over tp devices, and tokens between the products",
        unit="a logical axis of arrays: all arrays that have it are cut by the same axes of a mesh",
        moves="what XLA's partitioner puts between arrays that lie in different ways: parameters "
        "of a layer before it is used, gradients, activations within layers",
        launches="nobody, at the time of the step: the program was compiled before",
        memory="a part of all state, or all of it, and activations",
        launcher=Launcher.NOBODY,
    )


SYSTEMS = (
    System(
        NAME,
        _semantics("MaxText"),
        "loadmaster.systems.maxtext.plan:maxtext",
        WrittenForm(
            "loadmaster.systems.maxtext.write:maxtext",
            "MaxText 0.2 mesh sizes and logical axis rules (YAML)",
        ),
        packages=("maxtext",),
    ),
    System(
        FLAX,
        _semantics("Flax, logical axes"),
        "loadmaster.systems.maxtext.plan:flax",
        WrittenForm(
            "loadmaster.systems.maxtext.flax:flax", "Flax: mesh and logical axis rules (Python)"
        ),
        packages=("flax",),
        checker="loadmaster.systems.maxtext.check:checked",
    ),
)
