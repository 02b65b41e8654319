"""Recipes that are planned for a system beside the published ones of that system, judged alike.

    python benches/beside_published.py [--case NAME ...] [--write]

Needs PyTorch, which models are captured with. A published recipe is what its address says of sizes,
micro-batches, recomputed layers and the optimizer. What the address leaves open (where layers are
cut, labels of the ops between products) has the best that the target finds, so a published row is
at least as good as it is. Ours is what the target plans for the same model, batch and cluster when
nothing is said. Steps are the judge's; times of ops are of the roofline.

A step is taken apart per device, on average: seconds that it computes; of these, those of what is
done a second time; and seconds in which it waits for collectives, transfers or other stages. With
``--write`` the page ``results/beside-published.md`` is written.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import loadmaster as lm

PAGE = Path(__file__).parent / "results" / "beside-published.md"

#: The most that a step of ours may be of the published one.
MOST = 1.001

#: What joins hosts: eight ports of NDR InfiniBand, taken together.
_NETWORK = "384 GB/s"

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob"
_TITAN = "https://github.com/pytorch/torchtitan/blob/main"


@cache
def gpt(batch: int) -> lm.OpGraph:
    """GPT-2 of 345M parameters, 1,024 tokens a sample, in 16 bits, with Adam."""
    from published_models import Gpt, training

    return training("gpt_345m", lambda: Gpt(1024, 24, 16, 51200, 1024), batch, 1024, "float16")


@cache
def llama(batch: int) -> lm.OpGraph:
    """LLaMA-3 8B, 8,192 tokens a sample, in bfloat16, with AdamW."""
    from published_models import llama, training

    sizes = 4096, 32, 32, 8, 14336, 128256
    return training("llama3_8b", lambda: llama(*sizes), batch, 8192, "bfloat16")


@cache
def mixtral_training(layers: int, batch: int) -> lm.OpGraph:
    """Some layers of Mixtral 8x7B, 4,096 tokens a sample, in bfloat16, with AdamW."""
    from published_models import mixtral, training

    sizes = 4096, layers, 32, 8, 14336, 8, 32000
    return training("mixtral_8x7b", lambda: mixtral(*sizes), batch, 4096, "bfloat16")


def mixtral() -> lm.OpGraph:
    """Mixtral 8x7B: a pass over four prompts of 2,048 tokens."""
    return lm.read("example:mixtral")


@dataclass(frozen=True)
class Case:
    """A published recipe.

    Attributes
    ----------
    name, said : str
        What it is called, and what its address says of it.
    address : str
    graph : callable
    cluster : str
        A preset: that of the address, or where it names none the nearest one.
    devices : int
        How many of it; or of hosts with as much as it each, where that has fewer.
    target : str
    options : dict
        Of the target: the published recipe.
    """

    name: str
    said: str
    address: str
    graph: Callable[[], lm.OpGraph]
    cluster: str
    target: str
    options: dict[str, Any] = field(default_factory=dict)
    devices: int = 8

    @property
    def where(self) -> str:
        """The cluster in words."""
        n = lm.Cluster.preset(self.cluster).n_devices
        if self.devices <= n:
            return f"{self.devices} of {self.cluster}"
        return f"{self.devices // n} hosts of {self.cluster}, joined at {_NETWORK}"

    @property
    def on(self) -> lm.Cluster:
        """The cluster."""
        preset = lm.Cluster.preset(self.cluster)
        if self.devices <= preset.n_devices:
            return preset.subset(range(self.devices))
        gpus, link = self.cluster.split("-")
        hosts = self.devices // preset.n_devices
        return lm.Cluster.new(gpus, link.lower(), hosts=hosts, network=_NETWORK)


_GPT_DP = {
    "tp": 1, "pp": 1, "dp": 8, "micro_batches": 1, "virtual": 1, "recompute": True,
    "distributed_optimizer": False,
}  # fmt: skip
_GPT_MP = {
    "tp": 2, "pp": 2, "dp": 2, "micro_batches": 2, "virtual": 1, "recompute": True,
    "sequence": False, "distributed_optimizer": False,
}  # fmt: skip
_LLAMA = {
    "tp": 1, "pp": 1, "dp": 8, "virtual": 1, "distributed_optimizer": True,
}  # fmt: skip
_AT = "090e141cc47ddf3317464bf9af7561b932c131c1/examples"
_SAYS_DP = "8 GPUs; replicas, 8 samples each of 64; all layers recomputed"
_SAYS_MP = "8 GPUs; tp 2, pp 2, so dp 2; 4 samples a micro-batch, of 16; all layers recomputed"

CASES = [
    *(
        Case(
            f"gpt-dp-{cluster}", _SAYS_DP, f"{_MEGATRON}/{_AT}/pretrain_gpt_distributed.sh",
            lambda: gpt(64), cluster, "megatron", _GPT_DP,
        )
        for cluster in ("8xV100-NVLink", "8xH100-NVLink")
    ),
    *(
        Case(
            f"gpt-mp-{cluster}", _SAYS_MP,
            f"{_MEGATRON}/{_AT}/pretrain_gpt_distributed_with_mp.sh",
            lambda: gpt(16), cluster, "megatron", _GPT_MP,
        )
        for cluster in ("8xV100-NVLink", "8xH100-NVLink")
    ),
    Case(
        "llama-megatron",
        "8 H100; tp 1, pp 1; 1 sample a micro-batch, of 128 (here of 16: the same micro-batches, "
        "fewer of them); distributed optimizer, overlapped. FP8 and fused kernels; in bfloat16, "
        "unfused, 80 GiB do not hold a sample's activations beside the rest, so as little "
        "is recomputed as fits",
        f"{_MEGATRON}/main/examples/llama/train_llama3_8b_h100_fp8.sh",
        lambda: llama(16), "8xH100-NVLink", "megatron", _LLAMA | {"micro_batches": 2},
    ),
    Case(
        "llama-torchtitan",
        "8 H100 of 96 GB; FSDP of 8; 2 samples each, of 16; selective recomputation",
        f"{_TITAN}/benchmarks/llama3_h100_202412_torchtitan.md",
        lambda: llama(16), "8xH100-NVLink", "torchtitan",
        {"replicate": 1, "shard": 8, "tp": 1, "pp": 1, "recompute": "selective"},
    ),
    Case(
        "mixtral-training",
        "32 GPUs; tp 1, pp 4, dp 8, ep 8; 1 sample a micro-batch, 32 micro-batches; distributed "
        "optimizer, overlapped. Here 4 of the 32 layers, one a stage; the cluster, which it does "
        "not name, is four hosts of 8 H100; an expert takes its fair share of the tokens of each "
        "sample. With one layer a stage the head weighs more than with eight, so the gain is more too",
        f"{_MEGATRON}/main/examples/mixtral/train_mixtral_8x7b_distributed.sh",
        lambda: mixtral_training(4, 256), "8xH100-NVLink", "megatron",
        {"tp": 1, "pp": 4, "dp": 8, "expert_parallel": 8, "micro_batches": 32, "virtual": 1,
         "recompute": False, "distributed_optimizer": True},
        32,
    ),
    Case(
        "mixtral-megatron",
        "inference on 2 GPUs by tp 1, pp 2; ours is planned for vLLM",
        f"{_MEGATRON}/main/examples/mixtral/README.md",
        mixtral, "8xH100-NVLink", "vllm", {"tp": 1, "pp": 2}, 2,
    ),
    Case(
        "mixtral-vllm",
        "latency_mixtral8x7B_tp2: 2 GPUs by tp 2",
        "https://github.com/vllm-project/vllm/blob/main/.buildkite/nightly-benchmarks/tests/"
        "latency-tests.json",
        mixtral, "8xH100-NVLink", "vllm", {"tp": 2, "pp": 1}, 2,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A plan, taken apart."""

    what: str
    words: str
    step: float
    computes: float
    again: float
    waits: float
    moved: float
    peak: float
    fits: bool
    cpu: float

    @classmethod
    def of(cls, what: str, plan: lm.Plan, cpu: float) -> Row:
        """Seconds per device that takes part."""
        problem, program = plan.problem, plan.program
        on = plan.assignment.devices
        kinds = np.array(plan.cluster.device_types)[on]
        seconds = problem.compute_time[np.arange(len(on)), kinds]
        n = len(np.unique(on))
        names = program.graph.names
        op_of = problem.reduced.op_of.tolist()
        again = np.array(["@again" in names[op] for op in op_of])
        computes = float(seconds.sum()) / n
        words = _words(plan)
        return cls(
            what,
            f"{n} devices, {words}",
            plan.makespan,
            computes,
            float(seconds[again].sum()) / n,
            plan.makespan - computes,
            float(plan.schedule.bytes_moved) / n,
            float(plan.memory.peak.max()),
            plan.fits,
            cpu,
        )


def _words(plan: lm.Plan) -> str:
    """The recipe in a few words."""
    recipe = plan.recipe
    if recipe is None:
        return "whole layers in runs"
    if plan.target == "megatron":
        return str(plan.parallelism)
    axes = " x ".join(f"{axis.name} {axis.size}" for axis in recipe.mesh.axes)
    words = sorted(set(recipe.units.values()))
    gathered = f", layers gathered {' and '.join(words)}" if words else ""
    again = "whole layers" if all(" | " not in line for line in recipe.recompute) else "some ops"
    return f"{axes}{gathered}{f', {again} recomputed' if recipe.recompute else ''}"


def planned(case: Case, options: dict[str, Any]) -> tuple[lm.Plan, float]:
    """A plan, and CPU seconds that planning took."""
    graph, cluster = case.graph(), case.on
    began = time.process_time()
    plan = lm.place(graph, cluster, target=case.target, on_oom="best_effort", **options)
    return plan, time.process_time() - began


def rows(case: Case) -> Iterator[Row]:
    """The published recipe, then ours."""
    yield Row.of("published", *planned(case, case.options))
    yield Row.of("ours", *planned(case, {}))


def where(theirs: Row, ours: Row) -> str:
    """Where the gain is: the largest parts of what is spared, in words."""
    parts = {
        "recomputation": theirs.again - ours.again,
        "compute": (theirs.computes - theirs.again) - (ours.computes - ours.again),
        "waiting (collectives, transfers, bubbles)": theirs.waits - ours.waits,
    }
    said = [
        f"{name} {-seconds * 1e3:+.1f} ms"
        for name, seconds in sorted(parts.items(), key=lambda row: -abs(row[1]))
        if abs(seconds) > 1e-3 * theirs.step
    ]
    return ", ".join(said) or "none"


def page(cases: list[Case]) -> str:
    """Both tables, as they are made."""
    head = (
        "| case | recipe | step | computes | of it again | waits | sent per device | peak | CPU s |"
    )
    first = [head, f"|{'---|' * 9}"]
    second = ["| case | ours over published | where the gain is |", "|---|---|---|"]
    sources = []
    for case in cases:
        theirs, ours = rows(case)
        for row in (theirs, ours):
            over = "" if row.fits else " (**over the memory**)"
            first.append(
                f"| {case.name} | {row.what}: {row.words} | {row.step * 1e3:.1f} ms | "
                f"{row.computes * 1e3:.1f} ms | {row.again * 1e3:.1f} ms | {row.waits * 1e3:.1f} ms "
                f"| {row.moved / 1e9:.2f} GB | {row.peak / 2**30:.1f} GiB{over} | {row.cpu:.1f} |"
            )
            print(first[-1], flush=True)
        ratio = ours.step / theirs.step
        shown = f"{ratio:.4f}" if ratio <= MOST else f"**{ratio:.4f}**"
        second.append(f"| {case.name} | {shown} | {where(theirs, ours)} |")
        print(second[-1], flush=True)
        sources.append(f"* {case.name}, on {case.where}: {case.said} ({case.address}).")
    return "\n".join([*second, "", *first, "", *sources]) + "\n"


# ruff: noqa: E501
_HEAD = """\
# Recipes beside the published ones

`python benches/beside_published.py --write`, on the code of this page's commit. Step, as the judge has it, of what a target plans over
that of the published recipe of the same system, on the same model, batch and cluster; at most 1.001 is wanted. What a recipe's
address leaves open, such as where layers are cut, has the best that the target finds. Times of ops are of the roofline: of kernels
launched one by one. Seconds are per device, on average.

"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [case.name for case in CASES]
    parser.add_argument("--case", nargs="*", choices=names, default=names)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    args = parser.parse_args()
    text = page([case for case in CASES if case.name in args.case])
    if args.write:
        PAGE.write_text(_HEAD + text, encoding="utf-8")


if __name__ == "__main__":
    main()
