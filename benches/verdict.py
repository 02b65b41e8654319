"""From nothing to a verdict on one's own model: one command in a fresh process, import included.

    python benches/verdict.py                  # ResNet-50 and Llama-8B: wall and CPU seconds
    python benches/verdict.py --only resnet    # one of them
    python benches/verdict.py --profile llama  # where the seconds go, by function

Needs PyTorch. Both are training steps with AdamW on the meta device. The commands are ``loadmaster
place benches/verdict.py:resnet --cluster 8xH100-NVLink``, which says the best of each kind of plan,
and the same with ``advise``, which plans for systems too. Each is the faster of two runs, so that
bytecode is there as after an installation. CPU seconds are those of the process and of all that it
starts; wall-clock time means something on an idle machine only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()

CLUSTER = "8xH100-NVLink"

COMMANDS = ("place", "advise")

#: Functions of this file, and wall-clock seconds that the verdict on each may take.
WANTED = {"resnet": 10.0, "llama": 30.0}


def resnet() -> dict[str, Any]:
    """ResNet-50 on 256 images."""
    import torch
    from torch import nn

    class Bottleneck(nn.Module):
        """Three convolutions beside a shortcut."""

        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            sizes = [(inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
            self.convs = nn.ModuleList(
                nn.Conv2d(i, o, k, s, padding=k // 2, bias=False) for i, o, k, s in sizes
            )
            self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _, _ in sizes)
            self.shortcut = nn.Sequential()
            if stride > 1 or inputs != 4 * width:
                conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
                self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """[batch, channels, height, width]."""
            y = x
            for conv, norm in zip(self.convs[:2], self.norms[:2], strict=True):
                y = torch.relu(norm(conv(y)))
            return torch.relu(self.norms[2](self.convs[2](y)) + self.shortcut(x))

    with torch.device("meta"):
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
        ]
        inputs = 64
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(Bottleneck(inputs, 64 << stage, stride))
                inputs = 256 << stage
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
        return {
            "model": nn.Sequential(*layers),
            "example_inputs": torch.zeros(256, 3, 224, 224),
            "loss": nn.functional.cross_entropy,
            "targets": torch.zeros(256, dtype=torch.long),
            "optimizer": torch.optim.AdamW,
            "name": "resnet50_train_b256",
        }


def llama() -> dict[str, Any]:
    """Llama-3 8B in bfloat16 on 8 sequences of 4096 tokens."""
    import torch

    sys.path.insert(0, str(HERE.parent))
    import published_models

    with torch.device("meta"):
        words = torch.zeros(8, 4096, dtype=torch.long)
        model = published_models.llama(4096, 32, 32, 8, 14336, 128256).to(torch.bfloat16)
    return {
        "model": model,
        "example_inputs": words,
        "loss": lambda logits, targets: torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        ),
        "targets": words,
        "optimizer": torch.optim.AdamW,
        "name": "llama3_8b_train_b8",
    }


def command(name: str, word: str) -> list[str]:
    """What a user would type."""
    return ["-m", "loadmaster", word, f"{HERE}:{name}", "--cluster", CLUSTER]


def seconds(arguments: list[str], bytecode: str) -> tuple[float, float, str]:
    """Wall-clock and CPU seconds of Python in a fresh process, and what it printed."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, began = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.PIPE, check=True, env=environment
    )
    wall, after = time.perf_counter() - began, os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    return wall, cpu, done.stdout.decode()


def main() -> None:
    """Measures, or profiles one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=WANTED, help="one model")
    parser.add_argument("--profile", choices=WANTED, help="print the functions that take longest")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as bytecode:
        if arguments.profile:
            profiler = ["-m", "cProfile", "-s", "cumulative", *command(arguments.profile, "advise")]
            print(seconds(profiler, bytecode)[2])
            return
        rows = []
        for name, word in product([arguments.only] if arguments.only else WANTED, COMMANDS):
            wall, cpu, said = min(seconds(command(name, word), bytecode) for _ in range(2))
            bare = seconds(["-c", "import torch"], bytecode)
            print(said)
            rows.append((f"{word} {name}", wall, WANTED[name], cpu, *bare[:2]))
    print("| command, model | wall, s | wanted | CPU, s | import torch: wall | CPU |")
    print("|---|---|---|---|---|---|")
    for title, *figures in rows:
        print(f"| {title} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")


if __name__ == "__main__":
    main()
