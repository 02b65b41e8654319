"""The same problem with activations of repeated modules recomputed, where memory is short."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.base.errors import InputError
from loadmaster.model.module_paths import module_path
from loadmaster.model.patterns import escaped_pattern
from loadmaster.strategies.sharding.space import Space


def recomputed(space: Space) -> Iterator[Space]:
    """The space with all layers recomputed: layers as a whole, then the layers within them.

    None where the graph is of no training step, or no module of it is numbered.
    """
    problem, tried = space.problem, set[tuple[str, ...]]()
    for level in (1, 2):
        patterns = layers(problem.model.modules, level)
        if patterns and patterns not in tried:
            tried.add(patterns)
            try:
                recomputing = Space.of(problem, patterns)
            except InputError:
                return
            if recomputing.problem.model.n_ops > problem.model.n_ops:
                yield recomputing


def layers(modules: list[str], level: int) -> tuple[str, ...]:
    """Patterns of the modules that end in the ``level``-th number of their path.

    >>> layers(["h.0.fc", "h.1.fc", "m.layers.0.blocks.1.mlp", "head"], 1)
    ('h.*', 'm.layers.*')
    >>> layers(["h.0.fc", "h.1.fc", "m.layers.0.blocks.1.mlp", "head"], 2)
    ('m.layers.*.blocks.*',)
    """
    patterns: dict[str, None] = {}
    for module in dict.fromkeys(modules):
        words = module_path(module)
        numbers = [i for i, word in enumerate(words) if word.isdigit()]
        if len(numbers) >= level:
            outer = words[: numbers[level - 1] + 1]
            patterns[
                "".join(".*" if w.isdigit() else f".{escaped_pattern(w)}" for w in outer)[1:]
            ] = None
    return tuple(patterns)
