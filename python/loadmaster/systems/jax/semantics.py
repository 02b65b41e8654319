"""JAX as planning for it sees it."""

from loadmaster.systems.registry import Launcher, Semantics, System, WrittenForm

NAME = "jax"

SEMANTICS = Semantics(
    system="jax.jit with NamedSharding, partitioned by XLA",
    models="graphs that say the shapes of arrays, with a batch to share or arrays to cut",
    splits="axes of arrays, over axes of one mesh, evenly and in runs",
    unit="an array: ops follow those that they read, or a constraint on what they make",
    moves="what the partitioner puts between arrays that lie in different ways",
    launches="nobody, at the time of the step: the program was compiled before",
    memory="parts of parameters, state and activations; what is donated is updated in place",
    launcher=Launcher.NOBODY,
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.jax.plan:place",
        WrittenForm(
            "loadmaster.systems.jax.write:jax", "JAX: mesh and PartitionSpec per array (Python)"
        ),
        packages=("jax",),
        checker="loadmaster.systems.jax.check:checked",
    ),
)
