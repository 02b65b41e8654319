"""Labels of ops as the words of recipes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT, OWNER, Form
from loadmaster.model.recipe import AUTO, REPLICATE, WHOLE, Mesh

_STATE = {"flat": FLAT, "owner": OWNER}


def labels_of_words(
    dimensions: Dimensions, mesh: Mesh, words: Mapping[str, Sequence[str]]
) -> NDArray[np.int32]:
    """Labels of a word per axis and op, as :meth:`Recipe.words` gives them: int32 [n_axes, n_ops].

    Raises
    ------
    InputError
        A word that is left to a solver, or that an op does not know.
    """
    graph = dimensions.graph
    labels = np.zeros((len(mesh.axes), graph.n_ops), dtype=np.int32)
    known: dict[tuple[int, bool, str], int] = {}
    of_op = list(zip(dimensions.form_of.tolist(), graph.placeholder.tolist(), strict=True))
    for axis, name in enumerate(mesh.names):
        for op, word in enumerate(words[name]):
            if word in (WHOLE, REPLICATE) or of_op[op][0] < 0:
                continue
            key = (*of_op[op], word)
            if key not in known:
                known[key] = _label(dimensions, op, word, name)
            labels[axis, op] = known[key]
    return labels


def _label(dimensions: Dimensions, op: int, word: str, axis: str) -> int:
    graph, form = dimensions.graph, dimensions.forms[dimensions.form_of[op]]
    what = f"axis {axis!r}, op {graph.names[op]!r} ({graph.kinds[op]})"
    if word == AUTO:
        raise InputError(f"{what}: the recipe says auto: place with a strategy that decides it")
    if word in _STATE:
        return _STATE[word]
    of_form = _words(form, bool(graph.placeholder[op]))
    if word not in of_form:
        knows = ", ".join([WHOLE, *of_form])
        raise InputError(f"{what}: the recipe says {word!r}, and the op can be {knows}")
    return of_form.index(word) + 1


def words_of_labels(
    dimensions: Dimensions, mesh: Mesh, labels: NDArray[np.int32]
) -> dict[str, list[str | None]]:
    """The word of each label per axis, as :meth:`Recipe.of_labels` takes them."""
    state = {label: word for word, label in _STATE.items()}
    graph = dimensions.graph
    known: dict[tuple[int, bool], list[str]] = {}
    found: dict[str, list[str | None]] = {}
    of_op = list(zip(dimensions.form_of.tolist(), graph.placeholder.tolist(), strict=True))
    for name, column in zip(mesh.names, labels.tolist(), strict=True):
        words: list[str | None] = []
        for key, label in zip(of_op, column, strict=True):
            if key[0] < 0:
                words.append(None)
            elif label == 0:
                words.append(REPLICATE if key[1] else WHOLE)
            elif label < 0:
                words.append(state[label])
            else:
                if key not in known:
                    known[key] = _words(dimensions.forms[key[0]], key[1])
                words.append(known[key][label - 1])
        found[name] = words
    return found


def _words(form: Form, is_placeholder: bool) -> list[str]:
    """The word of each cut of a form."""
    if not is_placeholder:
        return [cut.name for cut in form.cuts]
    words = []
    for cut in form.cuts:
        factor = cut.outputs[0]
        axis = form.outputs[0][factor][0]
        place = sum(of == axis for of, _ in form.outputs[0][:factor])
        words.append(f"Shard({axis})" + (f".{place}" if place else ""))
    return words
