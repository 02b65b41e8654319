"""FLOPs of an einsum, from its equation and the shapes of its operands."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.base.checks import product


def einsum_flops(equation: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """FLOPs of contracting the operands from left to right.

    A label is summed as soon as no later operand and no result has it. A multiply-add is 2 FLOPs.

    Raises
    ------
    ValueError
        There is no operand.

    >>> einsum_flops("ij,jk->ik", [(2, 3), (3, 5)])
    60
    """
    terms, result, size = _labels(equation, shapes)
    needed = [set(result).union(*terms[i:]) for i in range(1, len(terms) + 1)]
    work = product([size[label] for label in set(terms[0])])
    kept = set(terms[0]) & needed[0]
    flops = work if set(terms[0]) - kept else 0
    for term, later in zip(terms[1:], needed[1:], strict=True):
        every = kept | set(term)
        kept = every & later
        flops += product([size[label] for label in every]) * (2 if every - kept else 1)
    return flops


def _labels(
    equation: str, shapes: Sequence[tuple[int, ...]]
) -> tuple[list[list[str]], list[str], dict[str, int]]:
    """The labels of every operand and of the result, and the size of each label.

    An ellipsis stands for the labels ``.1 .2 ...``, counted from the right.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    size: dict[str, int] = {}
    terms = []
    widest = 0
    for text, shape in zip(left.split(","), shapes, strict=False):
        hidden = len(shape) - len(text.replace("...", ""))
        widest = max(widest, hidden if "..." in text else 0)
        labels = _expand_ellipsis(text, hidden)
        for label, dim in zip(labels, shape, strict=False):
            size[label] = max(dim, size.get(label, 1))
        terms.append(labels)
    if not terms:
        raise ValueError("an einsum without operands")
    if not arrow:
        every = [label for labels in terms for label in labels]
        return terms, [x for x in every if x.startswith(".") or every.count(x) == 1], size
    return terms, _expand_ellipsis(right, widest), size


def _expand_ellipsis(text: str, hidden: int) -> list[str]:
    before, dots, after = text.partition("...")
    return [*before, *(f".{i}" for i in range(hidden, 0, -1) if dots), *after]
