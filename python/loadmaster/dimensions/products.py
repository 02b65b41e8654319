"""Products and all else whose axes can be written down in words, as in Einstein's notation.

"row contraction, contraction column -> row column" is a product of matrices: an axis of an argument
whose word no output has is summed over. "word*" stands for all axes that are left, "_" for an axis
that is never cut. A tensor with fewer axes has the last ones. ``tensors`` names the arguments that
the terms speak of, where they are not the first of the call. Axes of the words in ``unequal`` may
differ in length: there are fewer heads of keys than of queries. ``swapped`` names arguments, one
per term, that say whether the term's last two axes are swapped. ``own`` names arguments of which
each part takes what its own device has: what a forward pass noted, the same however it was cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.dimensions.call import TENSOR, NamedCall
from loadmaster.dimensions.draft import NONE, Draft
from loadmaster.dimensions.form import Pattern
from loadmaster.dimensions.rules import CallRule

_STAR, _WHOLE = "*", "_"


def product(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The pattern of a call whose rule has ``axes``, and ``ranks``: the fewest of its arguments."""
    left, _, right = rule.options["axes"].partition("->")
    names = rule.options.get("tensors", "").split() or rule.arguments or range(left.count(",") + 1)
    terms = [
        (tensor, _swapped(text.split(), call, rule, i))
        for i, (name, text) in enumerate(zip(names, left.split(","), strict=False))
        if (tensor := call.tensor(name)) is not None
    ]
    results = [text.split() for text in right.split(",")]
    fewest = rule.options.get("ranks", 0)
    if len(results) < len(call.outputs) or any(len(call.inputs[t]) < fewest for t, _ in terms):
        return None
    ranks = [(words, len(call.inputs[tensor])) for tensor, words in terms]
    ranks += [(words, len(sizes)) for words, sizes in zip(results, call.outputs, strict=False)]
    most = max((_left(words, rank) for words, rank in ranks), default=0)
    draft = Draft(call)
    draft.unequal.update(rule.options.get("unequal", "").split())
    for tensor, words in terms:
        draft.shared(_written(words, len(call.inputs[tensor]), most), [tensor], [])
    for j, (words, sizes) in enumerate(zip(results, call.outputs, strict=False)):
        draft.shared(_written(words, len(sizes), most), [], [j])
    for name in rule.options.get("own", "").split():
        if (tensor := call.tensor(name)) is not None:
            draft.inputs[tensor] = None
    return draft.finished(linear_sets(call, rule))


def einsum(call: NamedCall, rule: CallRule) -> Pattern | None:
    """The pattern of Einstein's notation itself: ``equation`` and tensors."""
    equation = str(call.value("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or any(len(set(term)) < len(term) for term in terms):
        return None
    draft = Draft(call)
    for tensor, term in enumerate(terms):
        draft.shared(list(term), [tensor], [])
    draft.shared(list(right), [], [0])
    return draft.finished([j] for j in range(call.n_tensors))


def contraction(call: NamedCall, rule: CallRule) -> Pattern | None:
    """``dot_general``: pairs of axes that are a batch, pairs that are summed, and all others.

    The result has the batch, then the other axes of the first tensor, then those of the second.
    """
    if call.n_tensors != 2:
        return None
    batch, summed = (
        call.value(f"{name}ing_dims", [call.value(f"{side}_{other}_dims", ()) for side in _SIDES])
        for name, other in (("batch", "batch"), ("contract", "contracting"))
    )
    draft = Draft(call)
    free = []
    for j, stem in enumerate(("row", "column")):
        words = [""] * len(call.inputs[j])
        for name, axes in (("batch", batch[j]), ("contraction", summed[j])):
            for i, axis in enumerate(axes):
                words[axis] = f"{name}{i}" if len(axes) > 1 else name
        others = [i for i, word in enumerate(words) if not word]
        for i, axis in enumerate(others):
            words[axis] = f"{stem}{i}" if len(others) > 1 else stem
        free += [words[axis] for axis in others]
        draft.inputs[j] = words
    first = draft.inputs[0] or []
    draft.outputs[0] = [*(first[axis] for axis in batch[0]), *free]
    return draft.finished([[0], [1]])


#: Names that HLO has for the two tensors of a product.
_SIDES = ("lhs", "rhs")

#: Words for the labels of a convolution's input, kernel and output.
_LABELS = (
    {"b": "batch", "f": "input_channel"},
    {"i": "input_channel", "o": "output_channel"},
    {"b": "batch", "f": "output_channel"},
)


def labelled(call: NamedCall, rule: CallRule) -> Pattern | None:
    """A convolution whose axes have labels: "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]".

    Spatial axes are not cut. Of groups of channels only the batch is. Of groups of the batch, which
    gradients of kernels in groups have, only what is summed is.
    """
    labels = str(call.value("labels")).translate(str.maketrans("", "", "[], "))
    terms = labels.replace("->", "x").split("_" if "_" in labels else "x")
    terms = [part for term in terms for part in term.split("x")]
    if call.n_tensors != 2 or len(terms) != 3:
        return None
    free = {"batch", "input_channel", "output_channel"}
    if call.value("feature_group_count", 1) > 1:
        free &= {"batch"}
    if call.value("batch_group_count", 1) > 1:
        free &= {"input_channel"}
    words = [
        [word if (word := of.get(label, "")) in free else "" for label in term]
        for term, of in zip(terms, _LABELS, strict=True)
    ]
    draft = Draft(call)
    draft.inputs = [words[0], words[1]]
    draft.outputs[0] = words[2]
    return draft.finished([[0], [1]])


def linear_sets(call: NamedCall, rule: CallRule) -> list[list[int]]:
    """The sets of tensors in which a call is linear: a rule's ``linear``, by position or name.

    An argument that is not given is left out. A number in the place of a tensor is not linear: it
    would be added once by each part. "all": in all arguments together. ``constants``: what is not
    given is a number too.
    """
    linear = rule.options.get("linear", ())
    if linear == "all":
        return [list(range(call.n_tensors))]
    sets = []
    for several in linear:
        tensors: list[int] = []
        for which in several:
            name = rule.arguments[which] if which < len(rule.arguments) else which
            value = call.value(name)
            if value is None and rule.options.get("constants", False):
                break
            if value is not None and not _is_tensors(value):
                break
            tensors += call.tensors(name)
        else:
            if tensors:
                sets.append(tensors)
    return sets


def _is_tensors(value: object) -> bool:
    return value == TENSOR or (isinstance(value, tuple) and all(each == TENSOR for each in value))


def _swapped(words: list[str], call: NamedCall, rule: CallRule, term: int) -> list[str]:
    """The words of a term, the last two swapped where the call says so."""
    flags = rule.options.get("swapped", ())
    if term < len(flags) and call.value(flags[term], 0):
        words[-2:] = words[-1], words[-2]
    return words


def _left(words: Sequence[str], rank: int) -> int:
    """The number of axes that a starred word stands for."""
    starred = sum(word.endswith(_STAR) for word in words)
    return max(rank - len(words) + 1, 0) if starred else 0


def _written(words: Sequence[str], rank: int, most: int) -> list[str]:
    """A term with its starred word written out; ``most``: the most axes that one stands for."""
    written: list[str] = []
    for word in words:
        if not word.endswith(_STAR):
            written.append(NONE if word == _WHOLE else word)
            continue
        stem, count = word.removesuffix(_STAR), _left(words, rank)
        numbers = range(most - count, most)
        written += [stem if most == 1 else f"{stem}{number}" for number in numbers]
    return written
