"""What XLA sends for plans of the target ``jax``, beside what the plans say.

    python benches/jax_collectives.py [DEVICES]

Training steps are planned, written, compiled for devices of the host (4, if not said) with all that
the file says, and read back: collectives of the optimized HLO, trips of loops counted. Devices are
slow, so that cutting small models gains. Bytes are those that go from one device to another.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

DEVICES = int(sys.argv[1]) if len(sys.argv) > 1 else 4
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import data  # noqa: E402, F401
import jax_models as models  # noqa: E402
import xla_collectives  # noqa: E402

import loadmaster as lm  # noqa: E402

#: Models, and what is planned: any mesh, data parallelism, tensors alone.
NAMES = ("transformer", "decoder", "scanned", "convnet", "experts", "mlp")
MESHES = {"best": None, "data": 1, "tensors": DEVICES}


def planned(name: str, tp: int | None) -> lm.Plan:
    """The plan of a model's step."""
    cluster = lm.Cluster.preset("8xH100-NVLink").subset(list(range(DEVICES))).with_speed(1e-5)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, f"{name}.mlir")
        path.write_text(models.step_of(name).lower(*models.given(name)).as_text(debug_info=True))
        options = {} if tp is None else {"tp": tp}
        return lm.place(lm.read(path), cluster, target="jax", **options)


def compiled(name: str, plan: lm.Plan) -> list[xla_collectives.Collective]:
    """The collectives of the step as XLA compiles it for what is written."""
    run, mesh, *_ = models.compiled_step(name, models.functions(lm.writers.jax(plan)))
    return xla_collectives.collectives(run.as_text(), mesh.size)


def main() -> None:
    print("| model | asked | mesh | plan, KiB | XLA, KiB | XLA over plan | collectives of XLA |")
    print("|---|---|---|---|---|---|---|")
    for name in NAMES:
        for asked, tp in MESHES.items():
            plan = planned(name, tp)
            rows = compiled(name, plan)
            said, sent = plan.schedule.collectives.bytes_sent, xla_collectives.sent(rows)
            axes = " ".join(f"{axis.name} {axis.size}" for axis in plan.recipe.mesh.axes)
            kinds = ", ".join(
                f"{count} {kind}" for kind, count in sorted(xla_collectives.by_kind(rows).items())
            )
            ratio = f"{sent / said:.2f}" if said else "-"
            print(
                f"| {name} | {asked} | {axes} | {said / 1024:.0f} | {sent / 1024:.0f} | {ratio} | "
                f"{kinds} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
