"""DTensor's styles of modules as planning for them sees them."""

from loadmaster.systems.registry import Semantics, System, WrittenForm

NAME = "dtensor"

SEMANTICS = Semantics(
    system="torch.distributed.tensor.parallel, with fully_shard around it",
    models="models whose batch can be shared, or that have nn.Linear or nn.Embedding to cut",
    splits="weights by columns, rows or entries, tokens between those, the batch; all evenly",
    unit="modules: what lies turns where a module begins or ends",
    moves="all-gathers, reduce-scatters and all-reduces at modules; gradients in the backward",
    launches="each process for its own device",
    memory="parts of weights, gradients and states; activations as they lie",
    framework="torch",
    runtimes=("eager", "compiled"),
)

SYSTEMS = (
    System(
        NAME,
        SEMANTICS,
        "loadmaster.systems.dtensor.plan:place",
        WrittenForm(
            "loadmaster.systems.dtensor.write:dtensor",
            "DTensor, fully_shard: parallel styles of modules (Python file)",
        ),
        packages=("torch",),
        checker="loadmaster.systems.shared.checked_files:checked",
    ),
)
